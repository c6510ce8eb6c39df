"""From nothing to shipped-checker, with a model of one layer and few updates."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from bases.base import BATCH, SIZES, BaseSettings, build_base, install_base, new_network, settle
from cotrain.core.shipped import CHECKOUT_MODELS
from cotrain.data.word_problems.source import study_problems
from cotrain.models.from_scratch import new_model
from cotrain.models.load import describe_model, load_model
from cotrain.pretraining.corpora import practice_of
from cotrain.pretraining.pretrain import config_for
from cotrain.rollout.common_roles import is_terse
from cotrain.storage import checkpoints as transaction
from tests.helpers import TINY
from tests.sentences import refuses

BRIEF = BaseSettings(practice_tokens=2 * BATCH, settle_tokens=BATCH, mend_tokens=BATCH, problems=study_problems((1, 3)))


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setitem(SIZES, "1M", {"depth": 1, "width": 32})


@pytest.mark.whole
def test_from_nothing_to_the_base(tmp_path):
    said: list[str] = []
    made = build_base(tmp_path / "out", BRIEF, report=said.append)
    assert made["finished"] and made["tokens"] == {"practice": 2 * BATCH, "settle": BATCH, "mend": BATCH}
    assert json.loads((tmp_path / "out/base-checker.json").read_text())["models"] == made["models"]
    settled, tokenizer = load_model(tmp_path / "out/mended")
    base, _ = load_model(tmp_path / "out/base-checker")
    assert base.config.num_hidden_layers == 1 and len(tokenizer) <= 640 and is_terse(str(tmp_path / "out/base-checker"))
    ids = torch.arange(9)[None]
    ratio = base(ids).logits / settled(ids).logits
    assert ratio.median().item() == pytest.approx(2.0, abs=0.02)  # sharpened, and stored as bfloat16
    again = build_base(tmp_path / "out", BRIEF, resume=True, report=said.append)
    assert again["models"] == made["models"] and sum("settle on" in line for line in said) == 1  # not done twice
    install_base(tmp_path / "out", tmp_path / "assets")
    assert (tmp_path / "assets/base-checker/model.safetensors").is_file() and (
        tmp_path / "assets/base-checker.json"
    ).is_file()


@pytest.mark.whole
def test_a_practice_that_was_stopped_can_be_settled(tmp_path):
    whole = replace(BRIEF, practice_tokens=9 * BATCH)
    with refuses("E_RUN_DIRECTORY", names=("practised", "--settle")):
        settle(tmp_path / "out", whole)
    network, _ = new_network(whole)
    weights = {name: parameter.detach() + 1 for name, parameter in network.named_parameters()}
    checkpoints = tmp_path / "out/practised/checkpoints"
    transaction.save_checkpoint(checkpoints, 3, {"model": weights}, {"state": {"step": 3, "cursor": 0}}, keep=1)
    made = settle(tmp_path / "out", whole)
    assert made["finished"] and made["tokens"]["practice"] == 3 * BATCH
    begun, _ = load_model(tmp_path / "out/practised-3")
    assert all(torch.equal(parameter, weights[name]) for name, parameter in begun.named_parameters())


def test_practice_begins_with_short_problems_and_settling_has_all_lengths():
    problems = study_problems((1, 9))

    def corpora(name):
        return practice_of(problems, 0, name, 10 if name == "practice" else 0)

    first, later, settled = (
        [part.get(i)[1]["content"].count("<step>") for part, _ in corpora(name) for i in places]
        for name, places in (("practice", range(10)), ("practice", range(90, 130)), ("settle", range(40)))
    )
    assert max(first) <= 3 and max(later) >= 9 and max(settled) >= 9  # an unneeded step may stand in a checked solution
    assert corpora("practice")[0][0].get(95) != corpora("settle")[0][0].get(95)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("size", "least", "most"), [("0.1M", 7e4, 1.2e5), ("0.3M", 2.5e5, 3.5e5), ("3M", 2.5e6, 3.5e6), ("8M", 7e6, 9e6)]
)
def test_sizes_have_as_many_parameters_as_they_say(size, least, most):
    _, tokenizer = load_model(TINY)
    count = sum(p.numel() for p in new_model(config_for(tokenizer, **SIZES[size]), 0).parameters())
    assert least < count < most


def test_what_ships_is_what_its_file_describes():
    said = json.loads((CHECKOUT_MODELS / "base-checker.json").read_text(encoding="utf-8"))
    assert said["models"]["base-checker"] == describe_model("shipped-checker")
    assert said["settings"] == json.loads(json.dumps(asdict(BaseSettings())))
    assert said["tokens"]["practice"] == BaseSettings().practice_tokens and is_terse("shipped-checker")
