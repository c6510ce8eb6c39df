"""The base that writes problems, with a tiny model and two updates, and the one that ships."""

import json
from collections import Counter
from dataclasses import asdict

import pytest

from bases.base import BATCH, install_base
from bases.proposing import (
    LENGTHS,
    NAME,
    SHARES,
    TAUGHT,
    ProposerSettings,
    answer_score_conversation,
    build_proposer,
    conversations_of,
    problem_score_conversation,
    proposal_conversation,
)
from cotrain.core.shipped import CHECKOUT_MODELS
from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.reader import read_problem
from cotrain.data.word_problems.source import study_problems
from cotrain.models.load import describe_model
from cotrain.recipes.mae.evolve import parse_score
from cotrain.rollout.common_roles import FORMAT_MARK, check_taught, is_terse
from cotrain.rollout.readers import is_held_out
from tests.helpers import TINY

SETTINGS = ProposerSettings()


@pytest.mark.whole
def test_a_base_that_proposes_is_made_and_installed(tmp_path):
    brief = ProposerSettings(start=str(TINY), tokens=2 * BATCH, problems=study_problems((2, 3)))
    made = build_proposer(tmp_path / "out", brief, report=lambda line: None)
    assert made["finished"] and is_terse(str(tmp_path / "out" / NAME))
    install_base(tmp_path / "out", tmp_path / "assets", NAME)
    said = json.loads((tmp_path / f"assets/{NAME}.json").read_text(encoding="utf-8"))
    assert said["models"][NAME] == describe_model(str(tmp_path / "assets" / NAME))


def test_it_is_taught_to_write_problems_that_can_be_read_mostly_short_ones_and_none_that_is_held_out():
    depths, shown = Counter(), 0
    for index in range(400):
        asked, reply = proposal_conversation(SETTINGS.problems, SETTINGS.shown, 0, index)
        problem = read_problem(reply["content"])
        assert not isinstance(problem, ParseFailure) and not is_held_out(reply["content"])
        depths[len(problem.needed)] += 1
        shown += asked["content"] != "\nWrite a problem:"
    assert set(depths) == set(LENGTHS) and sum(SHARES) == pytest.approx(1.0)
    assert 0.4 < depths[2] / 400 < 0.6 and 0.4 < shown / 400 < 0.6


@pytest.mark.whole
@pytest.mark.parametrize("skill, agreement", [(1.0, 1.0), (0.0, 0.5)])
def test_scores_are_the_truth_as_often_as_is_said(skill, agreement):
    for name in ("problem", "answer"):
        agreed = 0
        for index in range(200):
            if name == "problem":
                asked, reply = problem_score_conversation(SETTINGS.problems, skill, 0, index)
                text = asked["content"].removesuffix("\nScore the problem:")
                truth = not isinstance(read_problem(text), ParseFailure)
            else:
                asked, reply = answer_score_conversation(SETTINGS.problems, SETTINGS.habits, skill, 0, index)
                text, _, solution = asked["content"].removesuffix("\nScore:").partition("\n")
                truth = solution.endswith(f"<answer>{read_problem(text).answer}</answer>")
            agreed += (parse_score(reply["content"], {}).score == 1.0) == truth
        assert agreed / 200 == pytest.approx(agreement, abs=0.12 if skill == 0.0 else 1e-9)


def test_its_conversations_are_asked_as_the_roles_ask():
    ends = ["Write a problem:", "Solve:", "Review:", "Score the problem:", "Score:"]
    assert [
        part.get(3)[0]["content"].endswith(end) for (part, _), end in zip(conversations_of(SETTINGS), ends, strict=True)
    ] == [True] * 5


def test_what_ships_is_what_its_file_describes():
    said = json.loads((CHECKOUT_MODELS / f"{NAME}.json").read_text(encoding="utf-8"))
    assert said["models"][NAME] == describe_model("shipped-proposer") and is_terse("shipped-proposer")
    assert said["settings"] == json.loads(json.dumps(asdict(SETTINGS)))
    mark = json.loads((CHECKOUT_MODELS / NAME / FORMAT_MARK).read_text(encoding="utf-8"))
    assert mark == {"prompts": "short", "taught": list(TAUGHT)}
    for method in TAUGHT:
        check_taught(method, "shipped-proposer")
