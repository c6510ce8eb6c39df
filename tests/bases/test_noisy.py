"""The chain that makes the noisy base and the models of further roles, with models of one layer and two updates
each."""

import json
from dataclasses import replace

import pytest
import torch

from bases.base import BATCH
from bases.noisy import NAMES, NoisySettings, build_noisy, install_noisy
from cotrain.models.heads import reward_model
from cotrain.models.load import load_model
from cotrain.rollout.common_roles import is_terse


@pytest.mark.whole
def test_from_nothing_to_the_noisy_models(tmp_path):
    brief = {
        f"{stage}_tokens": 2 * BATCH
        for stage in ("pretraining", "practice", "focus", "tuning", "roles", "digest", "rater")
    }
    settings = replace(NoisySettings(depth=1, width=32), **brief)
    said: list[str] = []
    made = build_noisy(tmp_path / "out", settings, report=said.append)
    assert made["finished"] and sorted(made["models"]) == sorted(NAMES)
    assert json.loads((tmp_path / "out/base.json").read_text())["models"] == made["models"]
    for name in NAMES[:4]:
        model, tokenizer = load_model(tmp_path / "out" / name)
        assert model.config.num_hidden_layers == 1 and len(tokenizer) <= 640 and is_terse(str(tmp_path / "out" / name))
    rater = reward_model(tmp_path / "out/base-rater")
    word, _ = load_model(tmp_path / "out/rated")
    assert torch.equal(rater.body(torch.arange(9)[None])[0], word.model(torch.arange(9)[None])[0])
    assert rater.head.weight.any()
    again = build_noisy(tmp_path / "out", settings, resume=True, report=said.append)
    assert again["models"] == made["models"] and sum(" from " in line for line in said) == 7  # not done twice
    install_noisy(tmp_path / "out", tmp_path / "assets", tmp_path / "bases")
    assert (tmp_path / "assets/base/model.safetensors").is_file()
    for name in NAMES[1:]:
        assert (tmp_path / "bases" / name / "model.safetensors").is_file()
    assert (tmp_path / "assets/base.json").is_file()
