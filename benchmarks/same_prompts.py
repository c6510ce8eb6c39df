"""The same model on the same prompts, by ``cotrain eval`` and by lm-evaluation-harness.

    pip install 'lm_eval==0.4.13' torch transformers accelerate datasets        # in an environment of its own
    cotrain eval MODEL --suite gsm8k --data gsm8k.jsonl --problems 340 --samples 0 --answer-format phrase \\
        --max-tokens 160
    HARNESS/bin/python benchmarks/same_prompts.py MODEL evals/MODEL/suite-gsm8k.jsonl [--most 128]

The harness decodes greedily (``hf``, float32) with the prompt that the file's first row holds, in the model's chat
template, and reads by its own "flexible-extract" and "strict-match". Printed: how many texts are the same, how many
answers, and both accuracies. Imports nothing of cotrain, so that the environment needs the harness alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

PATTERNS = {"strict-match": ("#### (\\-?[0-9\\.\\,]+)", 0), "flexible-extract": ("(-?[$0-9.,]{2,})|(-?[0-9]+)", -1)}
IGNORED = [",", "\\$", "(?s).*#### ", "\\.$"]  # as the harness's task gsm8k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("suite", type=Path, help="suite-NAME.jsonl of `cotrain eval`")
    parser.add_argument("--most", type=int, help="problems, from the first on")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    try:
        head, *rows = [json.loads(line) for line in given.suite.read_text(encoding="utf-8").splitlines()]
        solver = head["settings"]["roles"]["solver"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        parser.error(
            f"{given.suite}: {error!r}; expected suite-NAME.jsonl, as `cotrain eval MODEL --suite NAME` leaves it"
        )
    ours = [row for row in rows if row["sample"] < 0][: given.most]  # the greedy ones
    asked = [row["problem"] for row in ours]
    theirs = answered(given.model, solver["prompt"], asked, solver["max_tokens"], given.batch, given.device)
    for row, (_, exact) in zip(ours, theirs, strict=True):
        row["theirs"] = exact(row["gold"])
    texts = [text for text, _ in theirs]
    print(f"{len(ours)} problems, at most {solver['max_tokens']} tokens, prompt {solver['prompt']!r}")
    print(f"same text: {sum(row['text'].strip() == text.strip() for row, text in zip(ours, texts, strict=True))}")
    for row, text in zip(ours, texts, strict=True):
        if (shared := same(row["text"], text)) >= 0:
            print(f"  {row['id']}: {row['text'].strip()[shared:][:40]!r}, the harness {text.strip()[shared:][:40]!r}")
    print(f"cotrain, phrase: {sum(bool(row['correct']) for row in ours)} right")
    for name in PATTERNS:
        print(f"harness, {name}: {sum(row['theirs'][name] for row in ours)} right")
    differ = [row["id"] for row in ours if bool(row["correct"]) != row["theirs"]["flexible-extract"]]
    print(f"another verdict, phrase and flexible-extract: {differ}")


def same(one: str, other: str) -> int:
    """Characters until two texts differ; -1 where they do not."""
    if one.strip() == other.strip():
        return -1
    pairs = zip(one.strip(), other.strip(), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.strip()), len(other.strip())))


def answered(
    model: str, prompt: str, problems: list[str], tokens: int, batch: int, device: str
) -> list[tuple[str, Any]]:
    """What the harness's model writes, and what grades it against a gold answer."""
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.filters.extraction import RegexFilter

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.jsonl"
        asked = [{"question": prompt.replace("{problem}", text)} for text in problems]
        data.write_text("".join(json.dumps(one) + "\n" for one in asked), encoding="utf-8")
        task = {
            "task": "same_prompts",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "",
            "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": tokens},
            "metric_list": [{"metric": "exact_match"}],
        }
        found = simple_evaluate(
            model="hf",
            model_args=f"pretrained={model},dtype=float32",
            tasks=[task],
            batch_size=batch,
            device=device,
            apply_chat_template=True,
            log_samples=True,
            bootstrap_iters=0,
        )
    samples = sorted(found["samples"]["same_prompts"], key=lambda one: one["doc_id"])
    texts = [one["resps"][0][0] for one in samples]

    def grader(text: str) -> Any:
        def exact(gold: str) -> dict[str, bool]:
            said = {}
            for name, (pattern, group) in PATTERNS.items():
                ((read,),) = RegexFilter(regex_pattern=pattern, group_select=group).apply([[text]], [{}])
                how = {"regexes_to_ignore": IGNORED, "ignore_case": True}
                said[name] = bool(exact_match_hf_evaluate([read], [f"#### {gold}"], **how)["exact_match"])
            return said

        return exact

    return [(text, grader(text)) for text in texts]


if __name__ == "__main__":
    main()
