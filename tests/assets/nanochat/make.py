"""Makes the other files of this folder with nanochat's own code (karpathy/nanochat at 92d63d4).

    PYTHONPATH=NANOCHAT python tests/assets/nanochat/make.py

NANOCHAT is a checkout of it, in an environment with torch, tiktoken, rustbpe and filelock; a CPU will do. Written are a
checkpoint of random weights with its tokenizer, and what nanochat's own code computes with them:

    base_checkpoints/d3/model_000003.pt, meta_000003.json, tokenizer/tokenizer.pkl
    expected.safetensors   ids [2, 200] and, at some of their places, logits; the same with the rotary table rounded to
                           bfloat16; the loss of predicting each next token, and of its gradient in each weight the norm
                           and the first numbers; tokens that its engine samples greedily
    calculator.json        texts, and what its calculator says to them (null: nothing)

The weights are far from those of a beginning, so that every part of the architecture shows in the logits. The context
is 512, so a short window is 128 tokens, which the 200 exceed.
"""

import json
import os
from pathlib import Path

os.environ["NANOCHAT_DTYPE"] = "float32"

import torch
from nanochat.checkpoint_manager import save_checkpoint
from nanochat.engine import Engine, use_calculator
from nanochat.gpt import GPT, GPTConfig
from nanochat.tokenizer import RustBPETokenizer
from safetensors.torch import save_file

FOLDER = Path(__file__).parent
TEXT = "the sum of 12 and 30 is 42, and 7 times 6 is 42 too. there are 5 apples and 3 pears in the basket. " * 20
SIZES = {"sequence_len": 512, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 32, "window_pattern": "SSL"}
SHOWN = 16  # numbers of each gradient
EXPRESSIONS = [
    "12+30", "7*6", "10/4", "10/5", "(1+2)*3", "1,000*2", "2**3", "1/0", "3.5-1", "-4+1", "1+", "", "5", "007",
    "'strawberry'.count('r')", '"apples".count("p")', "'a'.upper()", "x+1", "1//3", "1e3", "3 * 4", "2 (3)", "__name__",
    "1 + 2 ", "0.1+0.2", "100000*100000", "8/2*3", "1-2-3", ".5+.5", "'aa'.count('a') + 1", "open.count('a')",
]  # fmt: skip


def build_model(vocabulary: int) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=vocabulary, **SIZES))
    model.init_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "wte" not in name:
                parameter.normal_(0, 0.2)
            if "gate" in name:
                parameter.normal_(0, 0.5)
        model.lm_head.weight.normal_(0, 0.5)
        model.smear_lambda.fill_(0.7)
        model.backout_lambda.fill_(0.3)
        for parameter in model.parameters():  # half of the bytes, and nothing is rounded when they are read
            parameter.copy_(parameter.bfloat16())
    return model.eval()


def main() -> None:
    tokenizer = RustBPETokenizer.train_from_iterator([TEXT], 280)
    tokenizer.save(str(FOLDER / "tokenizer"))
    vocabulary = tokenizer.get_vocab_size()
    model = build_model(vocabulary)
    weights = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    meta = {"step": 3, "model_config": {**SIZES, "vocab_size": vocabulary}}
    save_checkpoint(str(FOLDER / "base_checkpoints" / "d3"), 3, weights, None, meta)

    ids = torch.randint(0, vocabulary, (2, 200), generator=torch.Generator().manual_seed(1))
    places = torch.tensor([0, 1, 2, 50, 127, 128, 129, 130, 160, 199])
    with torch.no_grad():
        found = {"ids": ids, "places": places, "logits": model(ids)[:, places]}
    loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    loss.backward()
    found["loss"] = loss.detach()
    for name, parameter in model.named_parameters():
        rows = parameter.grad[:vocabulary] if len(parameter) > vocabulary else parameter.grad
        found[f"gradient/{name}"] = rows.flatten()[:SHOWN].clone()
        found[f"norm/{name}"] = rows.norm()
    engine = Engine(model, tokenizer)
    for name, prompt in {"long": ids[1, :150], "short": ids[1, :5]}.items():
        columns = [column for column, _ in engine.generate(prompt.tolist(), max_tokens=24, temperature=0.0)]
        found[f"prompt/{name}"], found[f"greedy/{name}"] = prompt.clone(), torch.tensor(columns)[:, 0]
    model.cos, model.sin = model.cos.bfloat16().float(), model.sin.bfloat16().float()
    with torch.no_grad():
        found["logits_rounded_table"] = model(ids)[:, places]
    save_file(found, str(FOLDER / "expected.safetensors"))

    results = [(text, use_calculator(text)) for text in EXPRESSIONS]
    said = [[text, None if result is None else str(result)] for text, result in results]
    (FOLDER / "calculator.json").write_text(json.dumps(said, indent=0) + "\n")


if __name__ == "__main__":
    main()
