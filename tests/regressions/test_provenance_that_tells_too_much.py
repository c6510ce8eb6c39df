"""provenance.json, and with it report.html, held the command as it was typed: paths of the home directory, and keys."""

import sys
from pathlib import Path

import pytest

from cotrain import api
from cotrain.config.override import override
from cotrain.core.redact import HIDDEN, redact_command, redact_text
from cotrain.recipes.grpo import grpo
from tests.helpers import EASY, TINY

KEYS = {
    "hf": "hf_" + "aB3" * 11,
    "openai": "sk-proj-" + "x9" * 20,
    "github": "ghp_" + "Zz0" * 12,
    "aws": "AKIA" + "ABCD1234EFGH5678",
    "wandb": "0123456789abcdef" * 2 + "01234567",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("form", ["{}", "--set=name={}", "--note=it is {}, mine", "https://user:{}@example.org/data"])
def test_keys_are_hidden_wherever_they_stand(key, form):
    shown = " ".join(redact_command(["cotrain", "run", "grpo", form.format(key)]))
    assert key not in shown and HIDDEN in shown


@pytest.mark.parametrize(
    "words", [["--token", "geheim"], ["--api-key=geheim"], ["WANDB_API_KEY=geheim"], ["password: geheim"]]
)
def test_what_is_named_a_secret_is_hidden(words):
    assert "geheim" not in " ".join(redact_command(["cotrain", *words]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer geheim12345678", f"Authorization: {HIDDEN}"),
        ("Authorization: Basic geheim", f"Authorization: {HIDDEN}"),
        ('-H "Authorization: token geheim" -o x', f'-H "Authorization: {HIDDEN}" -o x'),
        ("password='ganz geheim' next", f"password='{HIDDEN}' next"),
        ('{"token": "ganz geheim", "max_tokens": 5}', f'{{"token": "{HIDDEN}", "max_tokens": 5}}'),
        (r'"{\"token\": \"ganz geheim\", \"n\": 5}"', rf'"{{\"token\": \"{HIDDEN}\", \"n\": 5}}"'),
        ('password="ganz geheim', f'password="{HIDDEN}'),
    ],
    ids=["bearer", "basic", "header", "quotes", "json", "escaped", "open"],
)
def test_a_secret_of_several_words_is_hidden_as_a_whole(text, shown):
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


def test_paths_are_shortened(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    here = tmp_path / "alice" / "work"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    words = [
        "/usr/bin/cotrain",
        "run",
        f"{here}/mine.py:brief",
        f"--out={here}/runs/a",
        "--model",
        f"{here.parent}/models/m",
    ]
    assert redact_command([*words, "/data/set.jsonl"]) == [
        *("cotrain", "run", "mine.py:brief", "--out=runs/a", "--model", "~/models/m", "/data/set.jsonl"),
    ]
    assert redact_text(f'{{"model": "{tmp_path}/alice"}} {tmp_path}/alicent') == f'{{"model": "~"}} {tmp_path}/alicent'


def test_hashes_and_settings_stay():
    for text in (
        "a" * 64,
        "tokens_per_step=3",
        "max_tokens: 160",
        "policies.verifier.lr=5e-4",
        "seed 3",
        "tokens=1000",
    ):
        assert redact_text(text) == text


@pytest.mark.whole
def test_a_run_tells_neither_in_provenance_nor_in_its_report(monkeypatch, tmp_path):
    home = tmp_path / "alice"
    home.mkdir()
    (home / "model").symlink_to(TINY)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(
        sys, "argv", ["cotrain", "run", "grpo", "--model", str(home / "model"), "--token", "geheim", KEYS["hf"]]
    )
    small = {"model": str(home / "model"), "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "steps": 1}
    made = override(grpo(tasks=EASY, **small), ["evaluation.splits=[]", "evaluation.group_size=1"])
    out = api.run(made, tmp_path / "run").directory
    for name in ("provenance.json", "report.html"):
        text = (Path(out) / name).read_text()
        assert str(home) not in text and "geheim" not in text and KEYS["hf"] not in text
        assert "~/model" in text and (HIDDEN in text or HIDDEN.replace("<", "\\u003c") in text)
