"""What gram tells its judge, and what its generator is paid."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import permutations

import pytest

from cotrain.config.policies import program
from cotrain.recipes.gram import gram, say_letter
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {
    "model": TINY,
    "tasks": EASY,
    "tasks_per_step": 8,
    "group_size": 4,
    "pairs": 3,
    "unlabelled": 0,
    "judge_lr": 1e-2,
}


def signals(trace):
    return {signal.name: signal.value for signal in trace.rewards}


@pytest.mark.whole
def test_both_letters_are_told_and_their_weights_are_the_smoothed_label():
    trainer = CoTrainer(gram(**SMALL, steps=1, warmup=1, smoothing=0.2))
    asked, told = trainer.recipe.roles["judge"].prompt, 0
    for episode in trainer.step().episodes:
        solutions = {str(t.address): t for t in episode.traces if t.role == "solver"}
        letters = defaultdict(dict)
        for trace in (t for t in episode.traces if t.role == "teacher"):
            letters[trace.prompt_ids][trace.text] = (signals(trace)["weight"], solutions[trace.parent])
        assert len(letters) <= 3
        for prompt_ids, said in letters.items():
            [(a, first), (b, _)] = said["A"], said["B"]
            assert sorted((a, b)) == pytest.approx([0.2, 0.8])
            assert (a > b) == first.metadata["correct"]
            text = trainer.policies["judge"].renderer.decode(prompt_ids)
            assert asked.partition("{first}")[0].partition("{problem}")[2] + first.text in text
            told += 1
    assert told > 0


@pytest.mark.whole
def test_without_smoothing_only_the_right_letter_is_told():
    for episode in CoTrainer(gram(**SMALL, steps=1, warmup=1, smoothing=0.0)).step().episodes:
        solutions = {str(t.address): t for t in episode.traces if t.role == "solver"}
        for trace in (t for t in episode.traces if t.role == "teacher"):
            assert signals(trace) == {"weight": 1.0}
            assert (trace.text == "A") == solutions[trace.parent].metadata["correct"]


@pytest.mark.whole
def test_pairs_without_labels_hold_two_different_solutions():
    result = CoTrainer(gram(**{**SMALL, "unlabelled": 1}, steps=1)).step()
    written = 0
    for episode in result.episodes:
        said = [t.text for t in episode.traces if t.role == "solver"]
        pairs = {f"A:\n{a}\nB:\n{b}" for a, b in permutations(said, 2) if a != b}
        texts = [t.text for t in episode.traces if t.role == "author"]
        assert set(texts) <= pairs and len(set(texts)) == len(texts)
        assert not [t for t in episode.traces if t.role in ("teacher", "judge")]
        written += len(texts)
    assert written and result.row["author/traces"] == written


@pytest.mark.whole
def test_the_generator_is_paid_the_row_sums_of_a_skew_symmetric_matrix():
    trainer = CoTrainer(gram(**SMALL, steps=8, warmup=6))
    for _ in range(6):
        trainer.step()  # the judge learns to say a letter
    judged = 0
    for episode in trainer.step().episodes:
        solutions = [t for t in episode.traces if t.role == "solver" and t.failure is None]
        names = [str(t.address) for t in solutions]
        readable = [i for i, t in enumerate(solutions) if "answer" in t.findings]
        judgements = [t for t in episode.traces if t.role == "judge"]
        assert [t.parent for t in judgements] == [names[i] for i, _ in permutations(readable, 2)]
        margin, found = [[0.0] * len(solutions) for _ in solutions], defaultdict(list)
        for (i, j), trace in zip(permutations(readable, 2), judgements, strict=True):
            if "score" in trace.findings:
                found[i, j].append(2 * trace.findings["score"] - 1)
                found[j, i].append(1 - 2 * trace.findings["score"])
            judged += "score" in trace.findings
            known = solutions[i].metadata["correct"] != solutions[j].metadata["correct"]
            assert trace.metadata.get("correct") == (solutions[i].metadata["correct"] if known else None)
        for (i, j), said in found.items():
            margin[i][j] = sum(said) / len(said)
        for i in readable:
            for j in set(range(len(solutions))) - set(readable):
                margin[i][j], margin[j][i] = 1.0, -1.0
        sums = [sum(row) / len(solutions) for row in margin]
        paid = [signals(t)["preferred"] for t in solutions]
        assert sum(paid) == pytest.approx(0.0, abs=1e-9)
        top = max(map(abs, sums))
        if top > 1e-3:
            scale = paid[sums.index(max(sums))] / max(sums)
            assert scale > 0 and paid == pytest.approx([scale * s for s in sums], abs=1e-9)
    assert judged > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"judge": "frozen", "generator": "frozen"}, "E_NOBODY_LEARNS"),
        ({"form": "rmr1"}, "E_FORM_NOT_LEARNABLE"),
        ({"form": "rmr1", "judge": "frozen", "model": "shipped"}, "E_JUDGE_NEEDS_CHAT_MODEL"),
        ({"group_size": 1}, "E_SETTING_RANGE"),
        ({"smoothing": 0.5}, "E_SETTING_RANGE: smoothing 0.5"),
        ({"pairs": 0}, "E_SETTING_RANGE: pairs 0"),
    ],
)
def test_what_it_refuses(arguments, code):
    with refuses(code):
        gram(**{**SMALL, **arguments})


@pytest.mark.whole
def test_a_teacher_speaks_in_the_tokens_of_a_model():
    recipe = gram(**SMALL, steps=1, warmup=1)
    for wrong, code in (("nobody", "E_NO_SUCH_PART"), ("author", "E_TOKENS_OF_NO_MODEL")):
        policies = {**recipe.policies, "teacher": program(say_letter, tokens_of=wrong)}
        with refuses(code, names=("'teacher'", f"'{wrong}'")):
            replace(recipe, policies=policies)
    policies = {**recipe.policies, "teacher": program(say_letter)}
    with refuses("E_TOKENIZERS_DIFFER", names=("'judge'", "'teacher'")):
        CoTrainer(replace(recipe, policies=policies)).step()
