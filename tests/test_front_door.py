"""What a newcomer types first: a trial is short, the page of a run is there from its first second on, and measuring
says how much it is."""

import json
import re
import urllib.request

import pytest

from cotrain.cli import main
from cotrain.commands.running import parser_of
from cotrain.commands.smoke import smoke_note, smoke_words
from cotrain.config.override import override
from cotrain.config.registry import find_recipe
from cotrain.core.flags import parsed_values, typed_flags
from cotrain.methods import NAMES, tango
from tests.helpers import TINY

SMALL = ["--model", TINY, "--threads", "1", "--kl", "0"]


def test_a_trial_of_every_recipe_has_every_phase_in_a_few_steps():
    for name in NAMES:
        parser, names = parser_of(name, build := find_recipe(name))
        words = [*smoke_words(build, parser, names, out := ["--out", "none"]), *out]
        parsed, typed = parser.parse_strictly(words), typed_flags(words, parser)
        plain = build(**{k: v for k, v in parsed_values(parsed, names).items() if k in typed})
        recipe, steps = override(plain, parsed.set), plain.steps
        assert 2 <= steps <= 5 and f"--smoke: {steps} steps of 2 problems" in smoke_note(recipe)
        played = {recipe.schedule.phase_at(step).name for step in range(steps)}
        assert played == {*recipe.schedule.cycle, *(phase for phase, _ in recipe.schedule.warmup)}, name


@pytest.mark.whole
def test_a_trial_is_short_and_says_so_and_flags_count_more(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "tango", "--smoke", *SMALL, "--reviews", "2", "--steps", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "note: --smoke: 2 steps of 2 problems, 1 of them verifier, and 2 held-out problems; the figures" in said
    saved = json.loads((out / "recipe.json").read_text())
    assert saved["steps"] == 2 and saved["settings"]["evaluation"]["tasks"] == 2
    assert saved["settings"]["evaluation"]["splits"] == []
    assert main(["run", "grpo", "--smoke", "--dry-run", *SMALL, "--out", str(out)]) == 0
    assert "smoke" not in "".join(line for line in capsys.readouterr().out.splitlines() if not line.startswith("#"))


def test_measuring_says_how_many_episodes_it_plays(tmp_path, capsys):
    words = ["run", "grpo", *SMALL, "--steps", "1", "--tasks-per-step", "2", "--group-size", "2"]
    words += ["--evaluation-tasks", "4", "--set", "evaluation.group_size=2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    # 4 problems, twice and greedily; 2 of each of two further splits, the same way
    assert "measuring the start on held-out problems, 24 episodes; --evaluation-tasks N measures less" in said
    assert "measuring the end on held-out problems, 24 episodes …" in said
    assert len(re.findall(r"measured the (?:start|end) in \d+:\d\d", said)) == 2


@pytest.mark.whole
def test_the_count_is_what_is_played(tmp_path):
    """Judges are played once more on the start's solutions, where there is a start."""
    from cotrain import api
    from cotrain.runs.figures import count_episodes, final_figures

    run = {"model": TINY, "steps": 2, "warmup": 1, "reviews": 1, "evaluation_tasks": 4}
    trainer = api.CoTrainer(override(tango.tango(**run), ["evaluation.group_size=8"]))
    played = []

    def count(total):
        played.append(total)
        return lambda: None

    trainer.watch = count
    final_figures(trainer)
    trainer.close()
    assert len(played) == 8 and sum(played) == count_episodes(trainer)


def test_the_page_of_a_run_is_there_while_it_goes_on(tmp_path):
    from cotrain.pages.command import serve_beside

    folder = tmp_path / "run"
    with serve_beside(folder) as line:
        (address,) = re.findall(r"http://\S+/", line)
        run = ["run", "grpo", "--smoke", *SMALL, "--steps", "1", "--out", str(folder)]
        assert main(run) == 0
        with urllib.request.urlopen(f"{address}api/0/overview", timeout=30) as answer:
            found = json.loads(answer.read())
    assert found
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{address}api/runs", timeout=2)


def test_a_page_that_nobody_began_a_run_for_is_closed(tmp_path):
    from cotrain.pages.command import serve_beside

    with serve_beside(tmp_path / "run"):
        pass


def test_view_prints_the_address_first(tmp_path, capsys):
    words = ["run", "grpo", "--smoke", "--view", *SMALL, "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"watch it in a browser while it goes on: http://127\.0\.0\.1:\d+/\S+/", said)
    assert said.index("http://") < said.index("measuring the start")
