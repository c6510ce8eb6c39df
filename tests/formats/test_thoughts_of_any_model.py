"""A thought in the tags of any model is no part of what a role says: one list for reading and for learning."""

import pytest

from cotrain.core.types import ParseFailure, Sampling
from cotrain.formats.preferences import read_thinkrm
from cotrain.formats.solutions import UNFINISHED, Solution, parse_solution
from cotrain.formats.verdicts import read_score
from cotrain.prompts.thoughts import TAGS, broken_thought_in, closes_thought, open_thought_of
from cotrain.rollout.role import Role
from cotrain.rollout.tools.calls import tag_format
from tests.formats.chat_templates import renderer_of

EACH = pytest.mark.parametrize(("opens", "closes"), TAGS.items(), ids=range(len(TAGS)))
SOLUTION = "<step>4 + 4 = 8</step><answer>8</answer>"


@EACH
def test_solutions_and_verdicts_behind_it_are_read(opens, closes):
    found = parse_solution(f"{opens}Is it <answer>7</answer>?{closes}{SOLUTION}", {})
    assert isinstance(found, Solution) and found.answer == "8"
    assert read_thinkrm(f"{opens}hm{closes}<answer>A</answer>").format_score == 1.0
    assert read_score(f"{opens}<score>0</score>{closes}<score>1</score>").final is True


@EACH
def test_prompt_that_opens_it_makes_a_reply_without_its_end_unfinished(opens, closes):
    role = Role(policy="p", prompt="{problem}", parse=parse_solution, sampling=Sampling(max_tokens=8))
    assert open_thought_of(f"Q\n{opens}\n").closes == closes
    assert role.parse_reply(SOLUTION, {}, thinking=True) == ParseFailure(reason=UNFINISHED, format_score=0.2)
    assert role.parse_reply(f"hm{closes}{SOLUTION}", {}, thinking=True).answer == "8"


@EACH
def test_call_inside_of_it_is_none(opens, closes):
    read = tag_format("python", "output").read
    assert read(f"{opens}perhaps <python>1 + 1</python>", {"python": None}) is None
    assert read(f"{opens}hm{closes}<python>1 + 1</python>", {"python": None}).said == ("1 + 1",)


def test_final_channel_stands_alone():
    assert broken_thought_in("<|channel|>final<|message|>8") == "" and closes_thought("<|channel|>final<|message|>8")


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        (["[THINK]", "[/THINK]"], "[THINK]7[/THINK]8"),
        (["<|START_THINKING|>", "<|END_THINKING|>"], "<|START_THINKING|>7<|END_THINKING|>8"),
        (["<|channel|>", "<|message|>"], "<|channel|>analysis<|message|>7<|channel|>final<|message|>8"),
    ],
    ids=["magistral", "cohere", "gpt-oss"],
)
def test_tags_that_are_control_tokens_are_shown(marks, said):
    """Else the thought would run into the answer: "78"."""
    renderer = renderer_of("none", control=marks)
    ids = renderer.tokenizer.encode(said, add_special_tokens=False)
    assert renderer.decode(ids) == said and renderer.offsets(ids)[-1] == len(said)
