"""What a page is told of a run: curves, figures, rollouts, counts; while the run goes on, cut back, torn or damaged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from fake_run import episode, training_row, write, write_fake_run

from cotrain.core.types import Episode
from cotrain.reports.curves import POINTS
from cotrain.reports.detail import dump_json
from cotrain.reports.follow import JsonlReader
from cotrain.reports.places import find_places
from cotrain.reports.rollouts import FIELDS, LEFT_OUT, REVIEW_UNREAD, TRUNCATED, UNREAD
from cotrain.reports.runs import RunView, open_run
from cotrain.storage.ledger import Ledger
from tests.sentences import refuses

AT = {name: place for place, name in enumerate(FIELDS)}


def read_all(directory: Path) -> RunView:
    run = open_run(directory)
    run.watch_all()
    while run.rollouts.read_some():
        pass
    return run


def test_curves_are_aligned_and_axes_never_fall(tmp_path: Path) -> None:
    run = read_all(write_fake_run(tmp_path, steps=40, episodes=2))
    training = run.overview()["training"]
    assert training["rows"] == 40 and training["every"] == 1
    lengths = {len(values) for part in ("axes", "series", "trained") for values in training[part].values()}
    assert lengths == {40}
    for values in training["axes"].values():
        assert values == sorted(values)
    assert training["axes"]["step"] == list(range(1, 41))  # steps that were finished, as the console counts
    made = {policy: sum(values) for policy, values in training["trained"].items()}
    assert made == {p: training["axes"][f"updates/{p}"][-1] for p in ("generator", "verifier")}
    assert training["series"]["generator/loss"].count(None) == 40 - made["generator"]  # an objective's is its policy's


@pytest.mark.whole
def test_a_run_of_several_processes_tells_what_each_did(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    assert read_all(tmp_path).overview()["processes"] == []
    figures = {"policies": "generator", "asleep_seconds": 0.5, "published_bytes": 8}
    rows = [
        {"step": step, "rollout": 1.0, **{f"process/engine/{k}": v for k, v in figures.items()}} for step in range(4)
    ]
    (tmp_path / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_all(tmp_path).overview()["processes"] == [{"name": "engine", "steps": 4, **figures}]


def test_a_long_run_has_means_of_neighbours_and_no_more_points_than_a_screen(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "long"})
    rows = [{"step": i, "tokens": 10 * i, "solver/accuracy": float(i % 2)} for i in range(4 * POINTS)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = open_run(tmp_path).overview()["training"]
    assert training["every"] == 4 and len(training["axes"]["step"]) == POINTS
    assert set(training["series"]["solver/accuracy"]) == {0.5}
    assert training["axes"]["step"][:2] == [4, 8] and training["axes"]["tokens"][-1] == 10 * (4 * POINTS - 1)


def test_lines_are_read_once_and_anew_when_the_file_was_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonlReader(path)
    assert lines.read_new() == ([], False)
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert lines.read_new() == ([{"step": 0}, {"step": 1}], False)
    assert lines.read_new() == ([], False)
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n')
    assert lines.read_new() == ([{"step": 2}], False)
    path.write_text('{"step": 0}\n{"step": 7}\n{"step": 8}\n{"step": 9}\n')  # cut back and grown past where we were
    assert lines.read_new() == ([{"step": 0}, {"step": 7}, {"step": 8}, {"step": 9}], True)
    path.write_text('{"step": 0}\n')
    assert lines.read_new() == ([{"step": 0}], True)
    path.write_text('{"step": 0}\n[]\nnonsense\n{"step": 3}\n')
    assert lines.read_new() == ([{"step": 3}], False) and lines.damaged == 2


def test_a_live_run_is_followed(tmp_path: Path) -> None:
    run = read_all(write_fake_run(tmp_path, steps=8, summary=False, episodes=3))
    before = run.stamp()
    assert run.stamp() == before and run.overview()["run"]["ended"] is False
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(training_row(8, 9, {"generator": 3, "verifier": 5})) + "\n")
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(8, [episode(8, 9, i) for i in range(3)])
    assert run.stamp() != before and run.rollouts.read_some() and not run.rollouts.read_some()
    assert run.overview()["training"]["rows"] == 9
    assert [row[AT["step"]] for row in run.rollouts.rows] == [4] * 3 + [0] * 3 + [
        8
    ] * 3  # the latest first, then as they come


def test_a_run_that_is_resumed_to_more_steps_says_so(tmp_path: Path) -> None:
    run = read_all(write_fake_run(tmp_path, steps=8, episodes=3))
    before, recipe = run.stamp(), json.loads((tmp_path / "recipe.json").read_text())
    rewards = {
        "name": "other",
        "objectives": {"generator": {"role": "solver", "algorithm": {"reward_weights": {"outcome": 3.0}}}},
    }
    write(tmp_path / "recipe.json", recipe | {"steps": 12, "settings": recipe["settings"] | rewards})
    assert run.stamp() != before
    assert run.overview()["run"]["planned"] == 12
    first = run.rollouts.rows_page(0, 100)
    assert first["generation"] == 1 and not first["rows"]  # other rewards: read again
    while run.rollouts.read_some():
        pass
    row = run.rollouts.rows[0]
    paid = {run.rollouts.signals[place]: value for place, value in row[AT["rewards"]]}
    assert row[AT["reward"]] == pytest.approx(3.0 * paid["outcome"], abs=1e-3)


def test_the_steps_of_a_ledger_are_listed_only_when_it_has_changed(tmp_path: Path, monkeypatch) -> None:
    """Once a step would be the square of a run's length: four minutes for 10,000 steps."""
    run = open_run(write_fake_run(tmp_path, steps=40, episodes=1))
    listed, members = [], run.rollouts.ledger.members
    monkeypatch.setattr(run.rollouts.ledger, "members", lambda: listed.append(1) or members())
    while run.rollouts.read_some():
        pass
    assert run.rollouts.read_step_count() == run.rollouts.step_count() == 10 and len(listed) == 1
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(40, [episode(40, 41, 0)])
    assert run.rollouts.read_some() and len(listed) == 2 and run.rollouts.read_step_count() == 11


def test_a_ledger_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    run = read_all(write_fake_run(tmp_path, steps=12, episodes=2))
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.truncate_after(4)
        ledger.append(5, [episode(5, 12, 0)])
    while run.rollouts.read_some():
        pass
    assert run.rollouts.generation == 1
    assert sorted({row[AT["step"]] for row in run.rollouts.rows}) == [0, 4, 5]


def test_rows_say_what_the_majority_of_the_reviews_says(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "votes"})
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [judged(i, verdicts) for i, verdicts in enumerate(VOTES)])
    rows = read_all(tmp_path).rollouts.rows
    seen = [tuple(row[AT[name]] for name in ("said", "yes", "readable", "reviews")) for row in rows]
    assert seen == [(1, 2, 3, 3), (0, 1, 8, 8), (None, 1, 2, 3), (None, 0, 0, 1), (None, 0, 0, 0)]
    assert [bool(row[AT["flags"]] & REVIEW_UNREAD) for row in rows] == [False, False, True, True, False]


VOTES = ((True, True, False), (True, *(False,) * 7), (True, False, None), (None,), ())


def judged(task: int, verdicts: tuple[bool | None, ...]) -> Episode:
    made = episode(0, 10, task)
    solver, verifier = made.traces
    reviews = [
        dataclasses.replace(
            verifier,
            address=dataclasses.replace(verifier.address, call=call),
            findings={} if said is None else {"final": said},
        )
        for call, said in enumerate(verdicts)
    ]
    return dataclasses.replace(made, traces=(solver, *reviews))


def test_flags_tell_what_went_wrong(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "flags"})
    base = episode(0, 10, 0)
    speech = dataclasses.replace(base.traces[0], findings={"failure": "no answer"}, finish="length", failure="cut off")
    search = dataclasses.replace(base.traces[0], findings={"searched": "spoons"})
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [dataclasses.replace(base, traces=(one,)) for one in (speech, search)])
    row, read = read_all(tmp_path).rollouts.rows
    assert row[AT["flags"]] & (UNREAD | TRUNCATED | LEFT_OUT) == UNREAD | TRUNCATED | LEFT_OUT
    assert not read[AT["flags"]] & UNREAD  # a search has no answer, and could be read


def test_a_judge_is_counted_by_answer_by_step_and_by_probability(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "counts"})
    solver, verifier = episode(0, 10, 0).traces
    right = {"correct": True, "step_ok": [True, True, False]}
    said = {"final": False, "steps": [True, False, True], "score": 0.25}
    made = dataclasses.replace(
        episode(0, 10, 0),
        traces=(dataclasses.replace(solver, metadata=right), dataclasses.replace(verifier, findings=said)),
    )
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [made])
    (window,) = read_all(tmp_path).verifier_document()["judges"]["verifier"]
    assert [window[key] for key in ("tp", "fn", "tn", "fp", "unread")] == [0, 1, 0, 0, 0]
    assert [window["step_" + key] for key in ("tp", "fn", "tn", "fp")] == [1, 1, 0, 1]
    assert window["bins"][2] == [1, 0.25, 1] and sum(bin[0] for bin in window["bins"]) == 1


def test_reward_is_weighed_as_the_recipe_does(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=4, episodes=4)
    rewards = {"outcome": 1.0, "step": {"is": "Anneal", "start": 0.5}}
    objective = {"role": "solver", "algorithm": {"reward_weights": rewards}}
    write(directory / "recipe.json", {"name": "w", "settings": {"objectives": {"generator": objective}}})
    run = read_all(directory)
    for row in run.rollouts.rows:
        paid = {run.rollouts.signals[place]: value for place, value in row[AT["rewards"]]}
        assert row[AT["reward"]] == pytest.approx(paid["outcome"] + 0.5 * paid["step"], abs=1e-3)


def test_one_rollout_has_tokens_logprobs_and_rewards(tmp_path: Path) -> None:
    run = open_run(write_fake_run(tmp_path, steps=4, episodes=2))
    found = run.rollout(0, 1, 0)
    assert found is not None
    solver, verifier = found["traces"]
    assert solver["logprobs"] == [-0.5, -0.25] and solver["tokens"] == ["#3", "#4"]  # no tokenizer is known for it
    assert verifier["parent"] == solver["address"] == "0:1:0:solver:0"
    assert run.rollout(0, 99, 0) is None and run.rollout(1, 0, 0) is None


def test_tokens_of_an_embedded_model_are_words(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=1, episodes=1)
    write(directory / "recipe.json", {"settings": {"policies": {"generator": {"model": "shipped"}}}})
    found = open_run(directory).rollout(0, 0, 0)
    assert found is not None and all(not piece.startswith("#") for piece in found["traces"][0]["tokens"])


@pytest.mark.parametrize("missing", ["provenance.json", "summary.json", "metrics.jsonl", "episodes"])
def test_any_part_may_be_missing(tmp_path: Path, missing: str) -> None:
    directory = write_fake_run(tmp_path / "run", steps=8, episodes=4)
    (directory / missing).rename(tmp_path / "elsewhere")
    run = read_all(directory)
    json.loads(
        dump_json([run.overview(), run.verifier_document(), run.rollouts.rows_page(0, 99), run.rollout(0, 0, 0)])
    )


def test_garbage_in_every_file_is_told(tmp_path: Path) -> None:
    lines = ["[]", "nonsense", '{"step": NaN}', '{"step": 1, "a/b": NaN, "a/length": "x", "a/kl": 1e999, "a/tokens": '
        'true}',
             '{"step": 2, "phase": 7, "a/length": 5, "eval/x": '
                 '1}', "[" * 100_000, '{"step": ' + "9" * 5000 + "}"]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    write(tmp_path / "summary.json", {"before": [1], "after": {"a": None, "b": "x", "c/d": {"value": 3}, "e": {}}})
    (tmp_path / "recipe.json").write_bytes(b"\xff\xfe{")
    write(tmp_path / "provenance.json", [1, 2])
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "episodes.jsonl.gz").write_bytes(b"not a ledger at all, only some bytes" * 9)
    run = read_all(tmp_path)
    found = json.loads(dump_json(run.overview()))
    assert found["training"]["rows"] == 2 and any("4 lines" in note for note in found["notes"])
    assert run.rollouts.rows == []


def test_runs_of_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        write_fake_run(tmp_path / name, steps=1, episodes=1)
    assert [place.path for place in find_places(tmp_path)] == [tmp_path / "a", tmp_path / "b" / "c"]
    assert [place.path for place in find_places(tmp_path / "a")] == [tmp_path / "a"]
    (tmp_path / "empty").mkdir()
    for wrong, code in (("empty", "E_NO_RUN_BELOW"), ("nothing", "E_NO_RUN_DIRECTORY")):
        with refuses(code):
            find_places(tmp_path / wrong)


def test_a_ledger_without_entropies_opens(tmp_path: Path) -> None:
    """Of an older version, or of an engine that does not tell them."""
    write_fake_run(tmp_path, steps=4, episodes=1, summary=False)
    (tmp_path / "episodes" / "episodes.jsonl.gz").unlink()
    made = episode(0, 4, 0)
    older = dataclasses.replace(made, traces=tuple(dataclasses.replace(t, entropies=b"") for t in made.traces))
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [older])
        ledger.append(1, [dataclasses.replace(episode(1, 4, 0), step=1)])
    run = read_all(tmp_path)
    old, new = run.rollout(0, 0, 0), run.rollout(1, 0, 0)
    assert old is not None and [trace["entropies"] for trace in old["traces"]] == [None, None]
    assert new is not None and new["traces"][0]["entropies"] == [1.0, 0.0]
    assert new["traces"][0]["ids"] == [3, 4]
