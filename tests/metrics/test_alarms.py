"""Every alarm fires on a bad series, and is silent on a good one, a short one and none."""

import gc
import json
from collections import deque
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import pytest

from cotrain.core.errors import StateError
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, Trace
from cotrain.metrics.alarms import BANDS, Monitor, applicable_bands, check_rows, with_examples
from cotrain.metrics.table import metric_with_key
from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.runs import step_recorder
from cotrain.runs.run import Interrupted
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY, TINY, Heard


def rows(**series):
    """Rows with these metrics, ``__`` for a slash; steps count from 0, None leaves the metric out."""
    length = max(len(values) for values in series.values())
    named = {key.replace("__", "/"): list(values) for key, values in series.items()}
    return [
        {"step": i, "phase": "p"} | {k: v[i] for k, v in named.items() if i < len(v) and v[i] is not None}
        for i in range(length)
    ]


def flat(*levels, each=10):
    return [level for level in levels for _ in range(each)]


MASKED = "generator__generator__mismatch_masked"
CASES = {  # band → (a bad series, the step of its alarm, good ones)
    "groups without spread": (
        rows(generator__zero_spread_groups=flat(0.2, 0.7, 0.7)),
        29,
        [
            rows(generator__zero_spread_groups=[*flat(0.7), 0.5, *flat(0.7)]),
            rows(generator__zero_spread_groups=[0.7] * 19),
        ],
    ),
    "one-sided verdicts": (
        rows(verifier__predicted_positive=flat(0.8), verifier__base_rate=flat(0.4)),
        9,
        [
            rows(verifier__predicted_positive=flat(0.5), verifier__base_rate=flat(0.3)),
            rows(verifier__predicted_positive=flat(0.02), verifier__base_rate=flat(0.05)),  # so few are right
            rows(verifier__predicted_positive=flat(0.08), verifier__base_rate=flat(0.11)),  # near
            rows(verifier__predicted_positive=[0.8] * 9, verifier__base_rate=[0.4] * 9),
            rows(verifier__predicted_positive=flat(0.8)),
        ],
    ),
    "rising gap": (
        rows(gap=flat(0.0, 0.1, 0.2)),
        29,
        [rows(gap=flat(0.3, 0.25, 0.31)), rows(gap=flat(-0.4, -0.2, -0.1)), rows(gap=[i / 100 for i in range(29)])],
    ),
    "drifting number of steps": (
        rows(solver__steps=flat(4.0, 4.5, 5.5)),
        27,
        [rows(solver__steps=flat(4.0, 4.9, 3.1)), rows(solver__steps=[4.0, *[9.0] * 9])],
    ),
    "unreadable reviews": (
        rows(verifier__parse_failures=flat(0.05, 0.2), verifier__base_rate=flat(0.5, 0.5)),
        13,
        [
            rows(verifier__parse_failures=flat(0.1), verifier__base_rate=flat(0.5)),
            rows(solver__parse_failures=flat(0.5)),  # no judge
        ],
    ),
    "ungraded answers": (
        rows(solver__ungraded=flat(0.0, 0.05)),
        12,
        [rows(solver__ungraded=flat(0.02)), rows(solver__ungraded=[0.0, 0.1, 0.0, 0.0, 0.0, 0.0])],
    ),
    "unreadable answers": (
        rows(solver__parse_failures=[1.0, 0.9], solver__accuracy=[0.0, 0.0]),
        0,
        [
            rows(solver__parse_failures=[0.5, 0.4], solver__accuracy=[0.1, 0.1]),
            rows(judge__parse_failures=[0.9]),  # no answers
        ],
    ),
    "mostly unreadable reviews": (
        rows(judge__parse_failures=[1.0, 0.9], judge__base_rate=[0.5, 0.5]),
        0,
        [
            rows(judge__parse_failures=[0.7, 0.6], judge__base_rate=[0.5, 0.5]),
            rows(solver__parse_failures=[0.9]),  # no reviews
        ],
    ),
    "episodes broken off": (
        rows(broken_off=[None, 0.05, 0.2]),
        2,
        [rows(broken_off=[0.1] * 5)],
    ),
    "failed rollouts": (rows(solver__failed=[None, 0.2]), 1, [rows(solver__failed=[0.1] * 5)]),
    "mostly cut off": (rows(solver__truncated=[0.7]), 0, [rows(solver__truncated=[0.6])]),
    "constant reward": (
        rows(generator__zero_spread_groups=[0.9, 1.0, 1.0]),
        2,
        [rows(generator__zero_spread_groups=[0.9, 1.0, 0.9, 1.0])],
    ),
    "cut off": (rows(solver__truncated=flat(0.0, 0.5)), 14, [rows(solver__truncated=flat(0.2))]),
    "collapsing entropy": (
        rows(generator__generator__surprisal=flat(0.2, 0.1, 0.01)),
        28,
        [rows(generator__generator__surprisal=flat(0.2, 0.05, 0.03)),
            rows(generator__generator__surprisal=flat(0.0, 0.0))],
    ),
    "sampler and trainer apart": (
        rows(generator__generator__sampler_trainer_diff=[0.0, 0.2, 0.2, 0.2]),
        2,
        [rows(generator__generator__sampler_trainer_diff=[0.2, 0.0, 0.09, 0.2])],
    ),
    "left out for mismatch": (rows(**{MASKED: [0.0, 0.0, 0.4]}), 2, [rows(**{MASKED: [0.0, 0.1, 0.1]})]),
    "consensus collapse": (
        rows(solver__majority_share=flat(0.5, 0.7, 0.9), solver__majority_accuracy=flat(0.5, 0.6, 0.3)),
        26,
        [
            rows(solver__majority_share=flat(0.5, 0.7, 0.9), solver__majority_accuracy=flat(0.5, 0.6, 0.7)),
            rows(solver__majority_share=flat(0.9, 0.7, 0.5), solver__majority_accuracy=flat(0.6, 0.5, 0.4)),
            rows(solver__majority_share=flat(0.5, 0.7, 0.9)),
        ],
    ),
    "reward hacking": (
        rows(solver__reward__proxy=flat(0.3, 0.5, 0.9), solver__accuracy=flat(0.3, 0.4, 0.2)),
        29,
        [
            rows(solver__reward__proxy=flat(0.3, 0.5, 0.9), solver__accuracy=flat(0.3, 0.4, 0.5)),
            rows(solver__reward__proxy=flat(0.9, 0.5, 0.3), solver__accuracy=flat(0.5, 0.4, 0.2)),
            rows(solver__reward__class_label=flat(0.3, 0.5, 0.9), solver__accuracy=flat(0.3, 0.4, 0.2)),  # a label
            rows(solver__reward__proxy__right=flat(0.3, 0.5, 0.9), solver__accuracy=flat(0.3, 0.4, 0.2)),
        ],
    ),
    "reward hacking by a judge": (
        rows(verifier__reward__agreement=flat(0.6, 0.7, 0.8), verifier__balanced_accuracy=flat(0.6, 0.65, 0.5)),
        29,
        [rows(verifier__reward__agreement=flat(0.6, 0.7, 0.8), verifier__balanced_accuracy=flat(0.6, 0.65, 0.7))],
    ),
    "audit does not follow": (
        rows(auditor__audit__payer=flat(0.3, 0.45, each=20), auditor__audit__auditor=flat(0.4, 0.35, each=20)),
        39,
        [
            rows(auditor__audit__payer=flat(0.3, 0.6, each=20), auditor__audit__auditor=flat(0.4, 0.6, each=20)),
            rows(auditor__audit__payer=flat(0.3, 0.35, each=20), auditor__audit__auditor=flat(0.4, 0.2, each=20)),
            rows(auditor__audit__payer=[0.3] * 20 + [0.6] * 19, auditor__audit__auditor=[0.4] * 39),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("band", CASES)
def test_an_alarm_fires_once_and_only_where_it_should(band):
    bad, step, good = CASES[band]
    (alarm,) = check_rows(bad)
    assert (alarm.band, alarm.step) == (band, step)
    assert alarm.last == bad[-1]["step"] and alarm.advice.endswith(".") and ". " not in alarm.advice
    for series in good:
        assert check_rows(series) == [], series[-1]
    assert check_rows(bad[:step]) == []


def test_limits_of_the_table_are_the_limits_of_the_alarms():
    """A window just within is silent, one just beyond is not; the limit itself stands in the table alone."""
    for band, key, count in (("cut off", "{role}/truncated", 10), ("unreadable reviews", "{role}/parse_failures", 10)):
        limit, name = metric_with_key(key).tolerable[1], metric_with_key(key).name
        for value, expected in ((limit, []), (limit + 0.01, [band])):
            series = [{"step": i, f"judge/{name}": value, "judge/base_rate": 0.5} for i in range(count)]
            assert [alarm.band for alarm in check_rows(series)] == expected
    limit = metric_with_key("{objective}/zero_spread_groups").healthy[1]
    for value, expected in ((limit, []), (limit + 0.01, ["groups without spread"])):
        assert [a.band for a in check_rows([{"step": i, "g/zero_spread_groups": value} for i in range(20)])] == expected


def test_every_band_watches_lines_of_the_table():
    for band in BANDS:
        assert (
            all(metric_with_key(key).key == key for key in band.keys)
            and band.healthy_text
            and band.what_to_do.endswith(".")
        ), band.name


def test_every_band_has_a_case_and_a_name_of_its_own():
    assert [band.name for band in BANDS] == list(CASES)
    assert check_rows([]) == check_rows([{"step": 0}, {}, {"phase": "x"}]) == []


def test_what_is_no_number_counts_nowhere():
    odd = [
        {"step": i, "solver/truncated": v} for i, v in enumerate([None, "x", float("nan"), float("inf"), 10**400] * 4)
    ]
    assert check_rows(odd) == []
    assert check_rows([{"kind": "evaluation", "step": i, "solver/truncated": 1.0} for i in range(20)]) == []


def test_rows_of_other_phases_do_not_count_in_a_window():
    """In an alternating schedule the generator's twenty rows lie among forty."""
    series = [None if i % 2 else 0.8 for i in range(40)]
    (alarm,) = check_rows(rows(generator__zero_spread_groups=series))
    assert alarm.step == 38 and alarm.key == "generator/zero_spread_groups"


def test_each_role_and_signal_has_a_series_of_its_own():
    bad = rows(a__truncated=flat(0.5), b__truncated=flat(0.0), c__truncated=flat(0.6))
    assert [(a.key, a.value) for a in check_rows(bad)] == [("a/truncated", 0.5), ("c/truncated", 0.6)]


def test_an_alarm_that_ended_says_until_when():
    (alarm,) = check_rows(rows(solver__truncated=flat(0.5, 0.0)))
    assert (alarm.step, alarm.last) == (9, 14)  # mean 0.25 at step 14


def test_a_monitor_that_goes_on_raises_what_one_that_never_stopped_raises():
    series = [row for bad, _, _ in CASES.values() for row in bad]
    series = [row | {"step": i} for i, row in enumerate(series)]
    whole, resumed = Monitor(), Monitor()
    raised = [alarm for row in series for alarm in whole.add_row(row)]
    for row in series[:50]:
        resumed.add_row(json.loads(json.dumps(row, sort_keys=True)))
    for row in series[50:]:
        resumed.add_row(row)
    assert resumed.alarms == whole.alarms == check_rows(series)
    assert [(a.band, a.step) for a in raised] == [(a.band, a.step) for a in whole.alarms]


@pytest.mark.whole
def test_a_long_run_leaves_no_more_with_its_monitor_than_a_short_one():
    """By all that it holds, which once grew with every row."""
    monitor, sizes = Monitor(), []
    row = {key: 0.4 for bad, _, _ in CASES.values() for key in bad[0] if key not in ("step", "phase")}
    for step in range(1000):
        monitor.add_row(row | {"step": step + 1000, "gap": 0.3 + 1 / (step + 3)})
        if step in (199, 999):
            sizes.append(held(monitor))
    assert sizes[0] > 500 and sizes[1] <= sizes[0] + 40  # numbers of rows


def held(thing):
    """The objects that this one leads to, and the places of lists."""
    seen, todo = {}, [thing]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen[id(one)] = 1 + len(one) if isinstance(one, list | deque) else 1
            todo += gc.get_referents(one)
    return sum(seen.values())


def test_the_bands_that_apply_are_known_from_the_keys():
    names = [
        band.name
        for band in applicable_bands(["gap", "verifier/parse_failures", "verifier/base_rate", "solver/reward/x"])
    ]
    assert names == ["rising gap", "unreadable reviews", "mostly unreadable reviews"]


def rollout(step, task, role, *, paid=0.0, correct=None, final=None, parent=None):
    address = Address(step=step, task=task, member=0, role=role, call=0)
    found = Trace(
        address=address, role=role, policy=role, version=0, group="g", prompt_ids=(1,), token_ids=(2,),
        logprobs=(-1.0,),
        text="", finish="stop", rewards=(Reward(name="proxy", value=paid),), parent=parent,
        findings={} if final is None else {"final": final}, metadata={} if correct is None else {"correct": correct},
    )  # fmt: skip
    return Episode(step=step, task=task, member=0, task_id="t", traces=(found,))


def test_an_alarm_about_rewards_names_the_best_paid_wrong_rollouts():
    (alarm,) = check_rows(CASES["reward hacking"][0])
    ledger = {
        24: [
            rollout(24, 0, "solver", paid=0.9, correct=False),
            rollout(24, 1, "solver", paid=1.0, correct=False),
            rollout(24, 2, "solver", paid=1.0, correct=True),
            rollout(24, 3, "other", paid=1.0, correct=False),
            rollout(24, 4, "solver", paid=1.0),
        ],
        22: [rollout(22, t, "solver", paid=1.0, correct=False) for t in range(5)],
    }

    def read(step):
        if step not in ledger:
            raise StateError(f"no step {step}")
        return ledger[step]

    shown = with_examples(alarm, read)
    assert shown.examples == ("24:1:0:solver:0", "24:0:0:solver:0", "22:0:0:solver:0")
    assert shown.line() == (
        "alarm after step 30: reward hacking (solver/reward/proxy: accuracy -0.20 since its best; healthy: accuracy "
        "within"
        " 0.1 of its best while the reward rises). The reward rises and the truth falls: read the rollouts, and mend or"
        " co-train what gives this reward. See rollouts 24:1:0:solver:0, 24:0:0:solver:0, 22:0:0:solver:0 "
        "(addresses count from 0)."
    )
    assert json.loads(json.dumps(shown.to_json()))["examples"] == list(shown.examples)
    assert with_examples(alarm, lambda step: ()).examples == ()


def test_an_alarm_about_verdicts_names_mistaken_ones():
    (gap,) = check_rows(CASES["rising gap"][0])
    (judge,) = check_rows(CASES["reward hacking by a judge"][0])
    said = [(0, True, False), (1, True, True), (2, False, False), (3, False, True)]

    def read(step):
        wanted = step in (gap.step, judge.step)
        return [
            Episode(
                step=step,
                task=t,
                member=0,
                task_id="t",
                traces=rollout(step, t, "verifier", final=f, correct=c, parent="x").traces,
            )
            for t, f, c in said
            if wanted
        ]

    assert with_examples(gap, read).examples == (f"{gap.step}:0:0:verifier:0",)
    assert with_examples(judge, read).examples == ()  # nobody was paid "agreement"
    assert "See rollouts" not in judge.line()


def test_an_alarm_of_an_audit_names_what_the_two_judge_differently():
    (alarm,) = check_rows(CASES["audit does not follow"][0])

    def audited(task, payer_said, final):
        (trace,) = rollout(39, task, "auditor", final=final, parent="x").traces
        shown = replace(trace, findings=trace.findings | {"payer_said": payer_said})
        return Episode(step=39, task=task, member=0, task_id="t", traces=(shown,))

    told = [audited(0, 1.0, True), audited(1, 0.75, False), audited(2, 0.25, False)]
    told += [rollout(39, 3, "verifier", final=False, parent="x")]
    examples = with_examples(alarm, lambda step: told if step == 39 else []).examples
    assert examples == ("39:1:0:auditor:0",)


class Always:
    """A rule that every row breaks."""

    def __call__(self, series):
        return 0.5

    def healthy_text(self, window):
        return "accuracy within 0.1 of its best while the reward rises"


@pytest.mark.whole
def test_a_run_says_an_alarm_once_and_keeps_it_through_an_interruption(tmp_path, monkeypatch):
    """With a band that the first step leaves: reward hacking, after one row instead of ten."""
    quick = replace(next(b for b in BANDS if b.name == "reward hacking"), window=1, rule=Always())
    monkeypatch.setattr(step_recorder, "Monitor", partial(Monitor, bands=(quick,)))
    whole, interrupted, resumed = Heard(), Heard(), Heard()
    made = grpo(model=TINY, steps=2, tasks=EASY, kl=0.0, tasks_per_step=3, group_size=4, evaluation_tasks=1)
    recipe = replace(made, evaluation=replace(made.evaluation, group_size=1, greedy=False, splits=()))
    loop.start_run(recipe, tmp_path / "whole", observer=whole)
    text = [line for line in whole.lines if line.startswith("alarm")]
    assert len(text) == 2 and text[0].startswith("alarm after step 1: reward hacking (solver/reward/format: ")
    alarms = json.loads((tmp_path / "whole" / "summary.json").read_text())["alarms"]
    assert [(a["key"], a["step"], a["last"]) for a in alarms] == [
        ("solver/reward/format", 0, 1),
        ("solver/reward/outcome", 0, 1),
    ]
    assert 1 <= len(alarms[0]["examples"]) <= 3 and f"See rollouts {', '.join(alarms[0]['examples'])} (" in text[0]
    assert (
        Ledger(tmp_path / "whole/episodes").find(Address.parse(alarms[0]["examples"][0])).metadata["correct"] is False
    )
    with pytest.raises(Interrupted):
        loop.start_run(recipe, tmp_path / "other", checkpoint_every=1, observer=interrupted, wrap_engine=StopsLate)
    loop.resume_run(recipe, tmp_path / "other", observer=resumed)
    assert [line for line in interrupted.lines if line.startswith("alarm")] == text
    assert not any(line.startswith("alarm") for line in resumed.lines)
    assert (tmp_path / "other" / "summary.json").read_bytes() == (tmp_path / "whole" / "summary.json").read_bytes()


class StopsLate:
    """An engine that stops the run when it is asked for step 1."""

    def __init__(self, engine):
        self.engine, self.publish, self.counts, self.late = engine, engine.publish, engine.counts, False

    async def sample(self, request):
        self.late = self.late or request.address.step == 1
        return await self.engine.sample(request)

    def advance(self):
        if self.late:
            raise Interrupted
        return self.engine.advance()
