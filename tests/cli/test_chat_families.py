"""The commands on models of other families: random weights, tiny, with chat templates that write what those of the
families write.

Qwen-3 with thoughts and without, and Gemma, which has no system message and ends its turns with a token of its own.
"""

import json

import pytest
import torch
from starlette.testclient import TestClient
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cotrain.cli.main import main
from cotrain.runs import opening
from cotrain.serving.app import make_application
from cotrain.serving.models import ServedRun
from tests.formats.chat_templates import renderer_of

pytestmark = pytest.mark.whole
FAMILIES = {  # template, configuration, the token that ends a turn
    "qwen-3-thinking": ("qwen3", "<|im_end|>"),
    "qwen-3": ("qwen3", "<|im_end|>"),
    "gemma": ("gemma", "<end_of_turn>"),
}
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 2048,
}  # fmt: skip
RUN = [
    "--steps",
    "2",
    "--tasks-per-step",
    "2",
    "--group-size",
    "2",
    "--evaluation-tasks",
    "2",
    "--threads",
    "1",
    "--device",
    "cpu",
]
RUN += [
    "--set",
    "roles.solver.sampling.max_tokens=8",
    "--set",
    "evaluation.group_size=1",
    "--set",
    "evaluation.greedy=false",
]


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request, tmp_path_factory):
    """Its name, a model of it, and a file of problems."""
    kind, end = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = renderer_of(request.param).tokenizer
    tokenizer.eos_token = end
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **SIZES)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"question": f"What is {n} + 4?", "answer": f"It is {n + 4}.\n#### {n + 4}"} for n in range(40)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return request.param, folder


def done(*words):
    assert main([*map(str, words)]) == 0, words


def test_the_commands_work_on_it(family, monkeypatch, capsys):
    name, folder = family
    monkeypatch.chdir(folder)
    torch.set_num_threads(1)
    done("eval", "./model", "--suite", "gsm8k", "--data", "data.jsonl", "--problems", "3", "--samples", "1",
         "--answer-format", "last-number", "--max-tokens", "8", "--device", "cpu")  # fmt: skip
    row = json.loads((folder / "evals/model/suite-gsm8k.jsonl").read_text().splitlines()[1])
    assert row["gold"].isdigit() and isinstance(row["text"], str)
    done("teach", "solver", "--answer-format", "phrase", "--model", "./model", "--data", "data.jsonl", "--tokens",
        "2048",
         "--batch-tokens", "1024", "--length", "512", "--out", "taught", "--threads", "1")  # fmt: skip
    done(
        "run",
        "grpo",
        "--model",
        "./taught",
        "--data",
        "data.jsonl",
        "--answer-format",
        "last-number",
        *RUN,
        "--out",
        "whole",
    )
    done("run", "tango", "--model", "./taught", "--data", "data.jsonl", "--answer-format", "last-number",
         "--verdict", "tags", "--lora", "2", "--warmup", "1",
         "--ratio", "1", "1", "--reviews", "2", "--set", "roles.verifier.sampling.max_tokens=8", *RUN, "--out",
         "lora")  # fmt: skip
    prompt = opening.load_trainer("whole").policies["generator"].renderer
    assert prompt.tokenizer.chat_template == renderer_of(name).tokenizer.chat_template
    done("export", "whole", "--role", "solver", "--out", "out")
    done("export", "lora", "--role", "verifier", "--merged", "--out", "merged")
    capsys.readouterr()
    for exported in ("out", "merged"):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
        assert tokenizer.chat_template and model.config.vocab_size == len(tokenizer)
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": "What is 1 + 1?"}], add_generation_prompt=True, return_tensors="pt"
        )
        ids = ids if isinstance(ids, torch.Tensor) else ids["input_ids"]
        assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] > ids.shape[1]
    served = ServedRun(opening.load_trainer("lora"))
    client = TestClient(make_application(served), base_url="http://127.0.0.1:8000")
    body = {
        "model": "solver",
        "messages": [{"role": "user", "content": "What is 1 + 1?"}],
        "temperature": 0,
        "max_tokens": 4,
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] <= 4
    served.engine.close()
