"""The audit of a judge in other trainers' rollouts: figures by hand, labels, new habits, the command."""

import errno
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cotrain.analysis.audit.auditing import AuditOptions, _kept_work, audit_files
from cotrain.analysis.audit.judge_error import cut_steps, error_rates, error_trends, step_windows
from cotrain.analysis.audit.labelling import (
    estimate_by_labels,
    plan_labels,
    read_labels,
    strata_of,
    stratified_rates,
    write_label_file,
)
from cotrain.analysis.audit.novelty import new_habits
from cotrain.cli.main import main
from cotrain.runs.foreign_files import ForeignRollout, read_foreign_run
from cotrain.runs.foreign_run import foreign_alarms, metrics_rows
from cotrain.runs.foreign_truth import grade_by_program
from cotrain.runs.kept_answers import WRITE_EVERY_S, KeptAnswers
from cotrain.storage.file_ops import DiskError
from cotrain.storage.kept_work import KeptWork
from tests.sentences import command_refuses

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "foreign"


def rollout(verdict, truth, *, problem="p", step=0, response="r", task=0, member=0):
    return ForeignRollout(
        step=step,
        task=task,
        member=member,
        where="rows.jsonl, row 1",
        problem=problem,
        prompt=problem,
        response=response,
        scores={"reward": float(bool(verdict))},
        verdict=verdict,
        truth=truth,
    )


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def fooled_rows(steps=12, problems=6, answers=4):
    """A policy that learns to say "Verified." to a judge that accepts whatever says so."""
    rng = random.Random(1)
    rows = []
    for step in range(steps):
        for problem in range(problems):
            for answer in range(answers):
                says_so = rng.random() < step / (steps - 1)
                right = rng.random() < 0.4
                number = problem + 2 if right else problem + 50 + answer
                text = f"I get {number}. The answer is {number}." + (" Verified twice." if says_so else "")
                judged = float(right or says_so)
                rows.append(
                    {"step": step, "prompt": f"{problem} plus 2?", "response": text, "reward": judged}
                    | {"gold": str(problem + 2)}
                )
    return rows


# -- figures


def test_rates_by_hand():
    """Ten problems of one answer each, so that every interval is Wilson's own."""
    cells = [(True, True)] * 3 + [(True, False)] * 2 + [(False, False)] * 4 + [(False, True)]
    rates = error_rates([rollout(v, t, problem=str(i)) for i, (v, t) in enumerate(cells)])
    assert rates["false positive rate"].value == pytest.approx(2 / 6) and rates["false positive rate"].n == 6
    assert rates["false negative rate"].value == pytest.approx(1 / 4)
    assert rates["wrong among accepted"].value == pytest.approx(2 / 5)
    assert rates["right among rejected"].value == pytest.approx(1 / 5)
    assert rates["fooled"].value == pytest.approx(2 / 10)
    assert (rates["false positive rate"].low, rates["false positive rate"].high) == pytest.approx(
        (0.09677, 0.70001), abs=1e-4
    )  # Wilson of 2 in 6


def test_answers_to_one_problem_are_not_independent():
    apart = error_rates([rollout(i % 4 == 0, False, problem=str(i)) for i in range(80)])["false positive rate"]
    together = error_rates([rollout(i // 20 == 0, False, problem=str(i // 20)) for i in range(80)])
    assert apart.value == together["false positive rate"].value == 0.25
    assert together["false positive rate"].high - together["false positive rate"].low > 2 * (apart.high - apart.low)


def test_unknown_truth_or_verdict_counts_nowhere():
    rates = error_rates([rollout(True, None), rollout(None, False), rollout(True, False)])
    assert rates["fooled"].n == 1


def test_steps_are_cut_into_windows():
    assert [list(part) for part in cut_steps([1, 2, 3, 7, 9], 2)] == [[1, 2], [3, 7, 9]]
    assert [list(part) for part in cut_steps([4], 3)] == [[4]]


def test_a_trend_is_the_last_third_minus_the_first():
    def answers(step, fooled):
        return [rollout(i < fooled, False, step=step, problem=str(i % 10)) for i in range(20)]

    rising = [one for step, fooled in ((0, 2), (1, 5), (2, 12)) for one in answers(step, fooled)]
    trend = error_trends(rising)["fooled"]
    assert trend.value == pytest.approx(0.5) and trend.low > 0.0
    same = [one for step in range(6) for one in answers(step, 6)]
    assert error_trends(same)["fooled"].includes(0.0)
    assert error_trends(answers(0, 3)) == {}
    assert [(w.first, w.last, w.answers) for w in step_windows(rising, 3)] == [(0, 0, 20), (1, 1, 20), (2, 2, 20)]


# -- labels


def sampled_run(tmp_path, rows=None):
    return read_foreign_run([write_rows(tmp_path / "rows.jsonl", rows or fooled_rows(steps=30))])


def truths_of(run):
    return {one.address: one.response.startswith(f"I get {one.gold}.") for one in run.rollouts}


def test_a_census_gives_the_true_error_without_an_interval(tmp_path):
    run = sampled_run(tmp_path, fooled_rows(steps=4))
    truths = truths_of(run)
    rates = stratified_rates(strata_of(run), truths)
    wrong = [one for one in run.rollouts if not truths[one.address]]
    assert rates["false positive rate"].value == pytest.approx(sum(one.verdict for one in wrong) / len(wrong))
    assert rates["false positive rate"].low == rates["false positive rate"].high == rates["false positive rate"].value
    assert rates["right among rejected"].value == 0.0


@pytest.mark.whole
def test_the_estimate_is_unbiased_and_its_interval_holds(tmp_path):
    """Over 200 draws of the sample: the mean of the estimates is the truth, and nine in ten intervals have it."""
    run = sampled_run(tmp_path)
    truths = truths_of(run)
    accepted = [one for one in run.rollouts if one.verdict]
    true_share = sum(not truths[one.address] for one in accepted) / len(accepted)
    wrong = [one for one in run.rollouts if not truths[one.address]]
    true_rate = sum(one.verdict for one in wrong) / len(wrong)
    shares, held_share, held_rate = [], 0, 0
    for seed in range(200):
        strata = strata_of(run, seed)
        plan = plan_labels(strata, {}, total=80)
        rates = stratified_rates(strata, {one.address: truths[one.address] for one, _ in plan.answers_to_label()})
        shares.append(rates["wrong among accepted"].value)
        held_share += rates["wrong among accepted"].includes(true_share)
        held_rate += rates["false positive rate"].includes(true_rate)
    assert sum(shares) / 200 == pytest.approx(true_share, abs=0.015)
    assert held_share >= 180 and held_rate >= 180


def test_a_narrower_width_needs_more_labels_and_contains_the_wider_sample(tmp_path):
    strata = strata_of(sampled_run(tmp_path))
    wide, narrow = (plan_labels(strata, {}, width=width) for width in (0.4, 0.15))
    assert wide.total < narrow.total
    assert {one.address for one, _ in wide.answers_to_label()} <= {one.address for one, _ in narrow.answers_to_label()}
    assert all(0.0 < probability <= 1.0 for _, probability in narrow.answers_to_label())


def test_the_width_is_reached(tmp_path):
    run = sampled_run(tmp_path)
    strata = strata_of(run)
    truths = truths_of(run)
    plan = plan_labels(strata, {}, width=0.2)
    rates = stratified_rates(strata, {one.address: truths[one.address] for one, _ in plan.answers_to_label()})
    for name in ("wrong among accepted", "right among rejected"):
        assert rates[name].high - rates[name].low <= 0.2


def test_picked_labels_are_passed_over(tmp_path):
    strata = strata_of(sampled_run(tmp_path))
    picked = {one.address: True for stratum in strata for one in stratum.rollouts[-1:] if len(stratum.rollouts) > 5}
    assert estimate_by_labels(strata, picked).passed_over == len(picked)


def test_a_file_of_labels_hides_the_verdict_and_comes_back(tmp_path):
    run = sampled_run(tmp_path)
    truths = truths_of(run)
    plan = plan_labels(strata_of(run), {}, total=40)
    file = tmp_path / "label.jsonl"
    write_label_file(file, plan, {})
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert set(rows[0]) == {"id", "text", "inclusion", "prompt", "response", "reference", "right"}
    labelled = [row | {"right": truths[row["id"]]} for row in rows[:-1]]
    labels, empty = read_labels(write_rows(file, [*labelled, rows[-1]]), run)
    assert empty == 1 and labels == {row["id"]: row["right"] for row in labelled}


@pytest.mark.parametrize(
    "row, code",
    [
        ({"id": "99:0:0", "right": True}, "E_LABEL_OF_OTHER_ROLLOUT: row 1 | '99:0:0'"),
        ({"id": "0:0:0", "right": "perhaps"}, "E_FIELD_NOT_BOOLEAN: row 1 | right is 'perhaps'"),
        ({"id": "0:0:0", "text": "feed", "right": True}, "E_LABEL_OF_OTHER_ROLLOUT: row 1 | another text"),
        ({"id": "0:0:0", "right": None}, "E_NO_LABEL: labels.jsonl"),
    ],
    ids=["id", "word", "text", "none"],
)
def test_labels_that_do_not_fit_are_refused(row, code, tmp_path, capsys):
    rows = write_rows(tmp_path / "rows.jsonl", fooled_rows(steps=2))
    labels = write_rows(tmp_path / "labels.jsonl", [row])
    command_refuses(["audit", rows, "--no-grade", "--labels", labels], code, capsys)


# -- habits


def test_a_new_phrase_that_the_judge_likes_is_found_with_examples(tmp_path):
    run = sampled_run(tmp_path, fooled_rows())
    (habit,) = [one for one in new_habits(run.rollouts) if one.kind == "phrase"]
    assert habit.name == "verified twice"
    assert habit.at_first < 0.2 and habit.now > 0.8
    assert habit.accepted_with == pytest.approx(1.0) and habit.accepted_without < 0.6
    assert "Verified twice." in habit.example_text
    by_address = {one.address: one for one in run.rollouts}
    assert all("Verified" in by_address[address].response for address in habit.examples)


def test_a_phrase_that_the_judge_does_not_like_is_none(tmp_path):
    rows = [row | {"reward": float("Verified" not in row["response"])} for row in fooled_rows()]
    assert not [one for one in new_habits(sampled_run(tmp_path, rows).rollouts) if one.kind == "phrase"]


def test_an_honest_run_has_no_new_phrase(tmp_path):
    rows = [row | {"step": index % 12} for index, row in enumerate(fooled_rows())]  # the same texts at any time
    assert new_habits(sampled_run(tmp_path, rows).rollouts) == []


# -- as a run


def test_rows_of_metrics_are_those_of_a_run(tmp_path):
    rows = fooled_rows(steps=2)
    run = sampled_run(tmp_path, [row | {"truth": row["response"].startswith(f"I get {row['gold']}.")} for row in rows])
    first = metrics_rows(run)[0]
    truths = [one.truth for one in run.rollouts if one.step == 0]
    verdicts = [one.verdict for one in run.rollouts if one.step == 0]
    assert first["policy/accuracy"] == pytest.approx(sum(truths) / 24)
    assert first["gap"] == pytest.approx((sum(verdicts) - sum(truths)) / 24)
    assert first["judge/predicted_positive"] == pytest.approx(sum(verdicts) / 24)


def test_the_alarms_of_a_run_are_raised_on_these_files(tmp_path):
    rows = fooled_rows(steps=36, problems=8)
    truthful = [row | {"truth": row["response"].startswith(f"I get {row['gold']}.")} for row in rows]
    assert {alarm.band for alarm in foreign_alarms(sampled_run(tmp_path, truthful))} >= {"rising gap"}
    honest = [row | {"reward": float(row["truth"])} for row in truthful]
    assert foreign_alarms(sampled_run(tmp_path, honest)) == []


# -- the command


def test_the_command_finds_the_blind_spot(tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    assert main(["audit", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["moving_to_where_the_judge_errs"] is True
    assert found["rates"]["false negative rate"]["value"] == 0.0
    assert found["columns"]["reference answer"] == "gold"
    assert [habit["name"] for habit in found["new_and_liked"]][:1] == ["verified twice"]
    assert main(["audit", str(file)]) == 0
    said = capsys.readouterr().out
    assert "is the policy moving to where the judge errs? YES" in said


def test_trl_with_references(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    run = read_foreign_run([ASSETS / "trl"])
    questions = {one.prompt.removesuffix("\nSolve:") for one in run.rollouts}
    references = write_rows(tmp_path / "gold.jsonl", [{"question": q, "answer": "18"} for q in sorted(questions)])
    assert main(["audit", str(ASSETS / "trl"), "--references", str(references), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["truth"]["source"] == "the package's grader against the reference"
    assert found["rates"]["fooled"]["n"] == 32
    others = write_rows(tmp_path / "others.jsonl", [{"question": "Who?", "answer": "1"}])
    command_refuses(
        ["audit", str(ASSETS / "trl"), "--references", str(others)],
        "E_REFERENCES_UNMATCHED: --references | --question-column",
        capsys,
    )


def test_a_program_says_what_is_right(tmp_path, capsys):
    program = tmp_path / "mine.py"
    program.write_text("def right(prompt, response, reference):\n    return f'I get {reference}.' in response\n")
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    assert main(["audit", str(file), "--truth-by", f"{program}:right", "--json"]) == 0
    asked_all = json.loads(capsys.readouterr().out)
    assert asked_all["rates"]["fooled"]["n"] == 12 * 24
    words = ["--no-grade", "--labels", f"{program}:right", "--width", "0.2", "--json"]
    assert main(["audit", str(file), *words]) == 0
    sampled = json.loads(capsys.readouterr().out)["estimate"]
    assert sampled["labels"] < 12 * 24
    low, high = (sampled["rates"]["false positive rate"][end] for end in ("low", "high"))
    assert low <= asked_all["rates"]["false positive rate"]["value"] <= high


STOPPED = """
from pathlib import Path

ASKED = Path(__file__).with_name("asked.txt")


def right(prompt, response, reference):
    with ASKED.open("a") as file:
        file.write(".")
    if len(ASKED.read_text()) == 20:
        raise KeyboardInterrupt
    if "52" in response:
        raise ValueError("not today")
    return f"I get {reference}." in response
"""


@pytest.mark.parametrize("words", [["--truth-by"], ["--no-grade", "--label", "60", "--labels"]], ids=["all", "sample"])
def test_what_a_program_that_was_stopped_has_said_is_kept(tmp_path, capsys, monkeypatch, words):
    """A slow program was asked about all answers again. What it failed at is asked again, whatever was kept."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "slow.py"
    program.write_text(STOPPED)
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    command = ["audit", str(file), *words, f"{program}:right", "--json"]

    def times_asked():
        return len((tmp_path / "asked.txt").read_text())

    assert main(command) == 130
    assert times_asked() == 20
    (kept,) = tmp_path.glob(".audit.*.partial")
    n_kept = len(json.loads(kept.read_text().splitlines()[1])["value"])
    assert 15 < n_kept <= 19
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr()
    went_on = json.loads(said.out)
    n_again = times_asked() - 20
    assert not list(tmp_path.glob(".*.partial")) and "going on with what an earlier try has left" in said.err
    assert main(command) == 0
    in_one_go = json.loads(capsys.readouterr().out)
    assert times_asked() == 20 + n_again + (n_again + n_kept) and in_one_go == went_on


def test_what_another_program_said_is_not_taken_for_its_own(tmp_path, monkeypatch):
    """A file that the program imports was edited, and the answers of before were kept as if it had said them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "helper_of_audit.py"
    helper.write_text("SAYS = True\n")
    program = tmp_path / "mine.py"
    program.write_text(
        "import helper_of_audit as helper\n\n\n"
        "def right(prompt, response, reference):\n    return helper.SAYS\n\n\n"
        "def wrong(prompt, response, reference):\n    return not helper.SAYS\n"
    )
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    rollouts = read_foreign_run([file]).rollouts

    def said_before(name):
        """What an audit by this function finds of an earlier try, before it is stopped with an answer of its own."""
        options = AuditOptions(columns={}, truth_by=f"{program}:{name}")
        with pytest.raises(KeyboardInterrupt), _kept_work([file], options, lambda text: None) as work:
            kept = KeptAnswers(work, "truth")
            before = kept.right(rollouts[0])
            kept.add(rollouts[0], name == "right")
            kept.write()
            raise KeyboardInterrupt
        return before

    names = ["right", "right", "wrong", "wrong"]
    assert [said_before(name) for name in names] == [None, True, None, False]
    helper.write_text("SAYS = False\n")
    assert [said_before(name) for name in names] == [None, True, None, False]


@pytest.mark.parametrize("words", [["--truth-by"], ["--no-grade", "--label", "60", "--labels"]], ids=["all", "sample"])
def test_the_file_of_a_program_is_run_once(tmp_path, capsys, words):
    """It may load a model."""
    program = tmp_path / "mine.py"
    program.write_text(
        "from pathlib import Path\n\nwith Path(__file__).with_name('runs.txt').open('a') as file:\n"
        "    file.write('.')\n\n\ndef right(prompt, response, reference):\n    return True\n"
    )
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    assert main(["audit", str(file), *words, f"{program}:right", "--json"]) == 0
    assert (tmp_path / "runs.txt").read_text() == "."


def test_what_a_slow_program_says_is_kept_while_it_is_asked(tmp_path):
    """A kill leaves it no moment to write."""
    rollouts = read_foreign_run([write_rows(tmp_path / "rows.jsonl", fooled_rows())]).rollouts[:2]
    work = KeptWork(tmp_path / "audit", {})
    kept = KeptAnswers(work, "truth")
    for rollout in rollouts:
        time.sleep(WRITE_EVERY_S)
        kept.add(rollout, True)
    work.close()  # as a kill, without a last write
    again = KeptAnswers(KeptWork(tmp_path / "audit", {}), "truth")
    assert [again.right(rollout) for rollout in rollouts] == [True, True]


def test_a_program_that_fails_says_nothing_of_an_answer_whose_truth_is_in_a_column(tmp_path):
    """The column's word was counted as the program's."""
    program = tmp_path / "broken.py"
    program.write_text("def right(prompt, response, reference):\n    raise ValueError('not today')\n")
    rows = [{**row, "truth": True} for row in fooled_rows()]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    found = audit_files([file], AuditOptions(columns={}, truth_by=f"{program}:right"))
    assert {rollout.truth for rollout in found.run.rollouts} == {None}


def test_a_second_audit_of_the_same_is_not_refused(tmp_path, monkeypatch):
    """It needs no place: two audits of one run may ask the same program at once."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "mine.py"
    program.write_text("def right(prompt, response, reference):\n    return True\n")
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    options = AuditOptions(columns={}, truth_by=f"{program}:right")
    said = []
    with _kept_work([file], options, said.append) as first:
        assert first is not None and said == []
        found = audit_files([file], options, said.append)
    assert {rollout.truth for rollout in found.run.rollouts} == {True}
    assert len(said) == 1 and "mine.py:right says is not kept" in said[0]


def test_an_audit_whose_disk_is_full_goes_on_without_keeping(tmp_path, capsys):
    class Full(KeptWork):
        def keep(self, key, value):
            raise DiskError("disk full", errno.ENOSPC, code="E_DISK_REFUSED")

    kept = KeptAnswers(Full(tmp_path / "audit", {}), "truth")
    rollouts = read_foreign_run([write_rows(tmp_path / "rows.jsonl", fooled_rows())]).rollouts
    graded = grade_by_program(rollouts, lambda prompt, response, reference: True, "mine.py:right", kept)
    assert {rollout.truth for rollout in graded.rollouts} == {True}
    assert "is not kept any more: disk full" in capsys.readouterr().err


def test_without_a_place_it_is_said_that_nothing_is_kept(tmp_path, capsys, monkeypatch):
    program = tmp_path / "mine.py"
    program.write_text("def right(prompt, response, reference):\n    return True\n")
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows())
    monkeypatch.chdir("/proc")
    assert main(["audit", str(file), "--no-grade", "--labels", f"{program}:right", "--label", "8", "--json"]) == 0
    said = capsys.readouterr()
    assert "mine.py:right says is not kept" in said.err and json.loads(said.out)["estimate"]["labels"] > 0


@pytest.mark.parametrize(
    "words, code",
    [
        (["--to-label", "x.jsonl"], "E_LABEL_COUNT: --to-label | --width"),
        (["--question-column", "q"], "E_FLAGS_GO_TOGETHER: --question-column | --references"),
        (["--judge", "nobody"], "E_NO_SUCH_COLUMN: --judge | 'nobody'"),
        (["--width", "0"], "E_COMMAND_LINE: --width | '0'"),
        (["--truth-by", "nowhere.py:f"], "E_CODE_FILE_MISSING: --truth-by | nowhere.py"),
        (["--truth-by", "{folder}/narrow.py:right"], "E_FUNCTION_SIGNATURE: def right(prompt, response, reference)"),
        (["--labels", "{folder}/narrow.py:right"], "E_FUNCTION_SIGNATURE: def right(prompt, response, reference)"),
    ],
    ids=["how-many", "alone", "judge", "width", "program", "narrow", "narrow-labels"],
)
def test_one_line_says_what_is_wrong(words, code, tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows(steps=2))
    (tmp_path / "narrow.py").write_text("def right(response): ...\n")
    command_refuses(["audit", file, *(word.format(folder=tmp_path) for word in words)], code, capsys)


@pytest.mark.parametrize(
    "words, code",
    [
        (["--to-label", "{folder}/labels.jsonl", "--label", "4"], "E_LABEL_FILE_EXISTS: labels.jsonl"),
        (
            ["--to-label", "{folder}/new.jsonl", "--label", "4", "--labels", "{folder}/mine.py:right"],
            "E_LABELS_BY_PROGRAM: --to-label | mine.py:right",
        ),
        (["--labels", "{folder}/nowhere.jsonl"], "E_FILE_MISSING: nowhere.jsonl"),
    ],
    ids=["exists", "by-program", "missing"],
)
def test_what_is_wrong_with_labels_is_said_before_answers_are_graded(words, code, tmp_path, capsys, monkeypatch):
    """A file of labels that was there already was named after all answers had been graded; next to a program that
    labels, none was written, and it was said that one was."""
    monkeypatch.setattr("cotrain.analysis.audit.auditing.read_foreign_run", None)
    (tmp_path / "labels.jsonl").write_text('{"id": "0:0:0", "right": true}\n')
    (tmp_path / "mine.py").write_text("def right(prompt, response, reference):\n    return True\n")
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows(steps=2))
    command_refuses(["audit", file, *(word.format(folder=tmp_path) for word in words)], code, capsys)


def test_an_audit_loads_no_torch(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", fooled_rows(steps=3))
    code = (
        "import sys; from cotrain.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    )
    words = ["audit", str(file), "--out", str(tmp_path / "run"), "--width", "0.3"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
