"""What a newcomer types first: a trial is short, the page of a run is there from its first second on, and measuring
says how much it is."""

import csv
import json
import re
import threading
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

from cotrain.cli.doctor import NEEDED, OPTIONAL
from cotrain.cli.flags import parsed_values, typed_flags
from cotrain.cli.main import main
from cotrain.cli.run import parser_of
from cotrain.cli.smoke import smoke_note, smoke_words
from cotrain.config.override import override
from cotrain.config.registry import find_recipe
from cotrain.core.errors import ConfigError
from cotrain.data.files import SPLITS, JsonlTasks
from cotrain.recipes import NAMES, RECIPES, tango
from tests.helpers import TINY
from tests.sentences import command_refuses

SMALL = ["--model", TINY, "--threads", "1", "--kl", "0"]


@pytest.mark.whole
def test_a_trial_of_every_recipe_has_every_phase_in_a_few_steps():
    for name in NAMES:
        parser, names = parser_of(name, build := find_recipe(name))
        out = ["--out", "none"]
        words = [*smoke_words(build, parser, names, out, lambda parsed, arguments: build(**arguments)), *out]
        parsed, typed = parser.parse_strictly(words), typed_flags(words, parser)
        plain = build(**{k: v for k, v in parsed_values(parsed, names).items() if k in typed})
        recipe, steps = override(plain, parsed.set), plain.steps
        assert 2 <= steps <= 5 and f"--smoke: {steps} steps of 2 problems" in (note := smoke_note(recipe))
        has_groups = "group_size" in recipe.origin.arguments
        assert (f"group_size {recipe.group_size}" in note) == has_groups == ("group_size" in note), name
        reviews = recipe.origin.arguments.get("reviews")
        assert (f"reviews {reviews}." in note) == bool(reviews) and (not reviews or reviews == 2), name
        played = {recipe.schedule.phase_at(step).name for step in range(steps)}
        assert played == {*recipe.schedule.cycle, *(phase for phase, _ in recipe.schedule.warmup)}, name


@pytest.mark.parametrize(("flags", "warmup"), [(["--rm-model", "shipped-rater"], []), ([], [("rm_start", 1)])])
def test_a_trial_has_a_warm_up_where_the_run_has_one(flags, warmup):
    """A reward model that has learned before was trained in a step that the run does not have."""
    build = find_recipe("cooper")
    parser, names = parser_of("cooper", build)
    typed = ["--model", TINY, "--out", "none", *flags]
    words = [*smoke_words(build, parser, names, typed, lambda parsed, arguments: build(**arguments)), *typed]
    parsed = parser.parse_strictly(words)
    given = typed_flags(words, parser)
    values = {name: value for name, value in parsed_values(parsed, names).items() if name in given}
    schedule = override(build(**values), parsed.set).schedule
    assert [tuple(stage) for stage in schedule.warmup] == warmup
    assert bool(warmup) == bool(build(model=TINY, rm_model=flags[1] if flags else None).schedule.warmup)


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


@pytest.mark.whole
def test_measuring_says_how_many_episodes_it_plays(tmp_path, capsys):
    words = ["run", "grpo", *SMALL, "--steps", "1", "--tasks-per-step", "2", "--group-size", "2"]
    words += ["--evaluation-tasks", "24", "--set", "evaluation.group_size=2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    # 24 problems, twice and greedily; 12 of each of two further splits, the same way
    assert "measuring the start on held-out problems, 144 episodes; --evaluation-tasks N measures less" in said
    assert "measuring the end on held-out problems, 144 episodes …" in said
    assert len(re.findall(r"measured the (?:start|end) in \d+:\d\d", said)) == 2


@pytest.mark.whole
def test_the_count_is_what_is_played(tmp_path):
    """Judges are played once more on the start's solutions, where there is a start."""
    from cotrain.rollout.runner import BatchProgress
    from cotrain.runs.figures import count_episodes, metrics_on_test_split
    from cotrain.trainer.trainer import CoTrainer

    run = {"model": TINY, "steps": 2, "warmup": 1, "reviews": 1, "evaluation_tasks": 4}
    trainer = CoTrainer(override(tango.tango(**run), ["evaluation.group_size=8"]))
    played = []

    class Count(BatchProgress):
        def begin(self, n_episodes):
            played.append(n_episodes)

    trainer.eval_progress = Count("{}", pytest.fail)
    metrics_on_test_split(trainer)
    trainer.close()
    assert len(played) == 8 and sum(played) == count_episodes(trainer)


@pytest.mark.whole
def test_the_page_of_a_run_is_there_while_it_goes_on(tmp_path):
    from cotrain.cli.view import serve_beside

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
    from cotrain.cli.view import serve_beside

    with serve_beside(tmp_path / "run"):
        pass


def test_a_run_that_ends_as_soon_as_it_began_lets_its_page_go(tmp_path):
    from cotrain.cli.view import serve_beside

    def begin_and_end():
        with serve_beside(tmp_path):
            time.sleep(0.05)  # the server is waiting for a recipe now
            (tmp_path / "recipe.json").write_text("{}")

    thread = threading.Thread(target=begin_and_end, daemon=True)
    thread.start()
    thread.join(timeout=3)
    assert not thread.is_alive()


@pytest.mark.whole
def test_view_prints_the_address_first(tmp_path, capsys):
    words = ["run", "grpo", "--smoke", "--view", *SMALL, "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"watch it in a browser while it goes on: http://127\.0\.0\.1:\d+/\S+/", said)
    assert said.index("http://") < said.index("measuring the start")


def plain_lines(said):
    return [line for line in said.splitlines() if not line.startswith("#")]


@pytest.mark.whole
def test_flags_of_other_programs_are_taken_as_ours(capsys):
    theirs = ["--learning_rate", "3e-4", "--num-generations=4", "--max-steps", "7", "--beta", "0"]
    theirs += ["--max-completion-length", "64", "--save_steps", "5", "--output-dir", "none", "--limit", "9"]
    ours = ["--lr", "3e-4", "--group-size=4", "--steps", "7", "--kl", "0"]
    ours += ["--set", "roles.solver.sampling.max_tokens=64", "--checkpoint-every", "5", "--out", "none"]
    ours += ["--evaluation-tasks", "9"]
    said = []
    for command, words in (("train", theirs), ("run", ours)):
        assert main([command, "grpo", "--model", TINY, "--threads", "1", "--dry-run", *words]) == 0
        said.append(plain_lines(capsys.readouterr().out))
    assert said[0] == said[1] and "group-size = 4" in said[0]


TAKEN = {  # of TRL, with a value → what the dry run then holds
    "--beta 0.25": "kl = 0.25",
    "--temperature 0.5": "temperature = 0.5",
    "--max-completion-length 64": 'set = ["roles.solver.sampling.max_tokens=64"]',
    "--max-tokens=64": 'set = ["roles.solver.sampling.max_tokens=64"]',
    "--save-steps 5": "checkpoint-every = 5",
    "--dataset_name own.jsonl": "own.jsonl",
}


def planned(capsys, *words):
    """What a dry run with these words would do."""
    assert main(["run", "grpo", "--model", TINY, "--threads", "1", "--dry-run", *words]) == 0, words
    return capsys.readouterr().out


@pytest.mark.whole
@pytest.mark.parametrize("words", TAKEN)
def test_a_flag_of_trl_is_taken_where_it_means_the_same(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + 2?", "answer": str(n + 2)} for n in range(400)]
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert TAKEN[words] in planned(capsys, *words.split())


@pytest.mark.whole
def test_a_setting_counts_more_than_the_flag_that_stands_for_it(capsys):
    setting = "roles.solver.sampling.max_tokens=9"
    for words in (["--set", setting, "--max-tokens", "64"], ["--max-tokens=64", f"--set={setting}"]):
        said = planned(capsys, *words)
        assert said.index(setting) > said.index("sampling.max_tokens=64")


def test_every_name_of_another_program_leads_to_a_flag_that_a_command_has(monkeypatch, capsys):
    from cotrain.cli.foreign_flags import COMMON
    from tests.cli import test_help

    commands = [[name, *test_help.FURTHER.get(name, [])] for name in test_help.known(capsys)]
    parsers = [test_help.parser_of(monkeypatch, words) for words in commands]
    flags = {flag for parser in parsers for action in parser._actions for flag in action.option_strings}
    assert {own for ours in COMMON.values() for own in ours} <= flags


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "grpo", "--xyzzy"], "'--xyzzy'; see"),  # nothing is near
        (["run", "grpo", "--max-tokens"], "--max-tokens: expected one argument"),
        (["run", "grpo", "--no-such-flag", "1"], "'--no-such-flag'"),
        (["run", "grpo", "--learning-rate", "fast"], "--lr | 'fast'"),
    ],
)
def test_what_is_done_another_way_here_is_said_in_one_line(words, named, capsys):
    command_refuses([*words, "--out", "none"], f"E_COMMAND_LINE: {named}", capsys)


@pytest.mark.whole
def test_a_file_of_flags_takes_their_names_too(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "grpo"\nlearning_rate = 3e-4\nnum-generations = 4\nmax-tokens = 64\n')
    assert main(["run", "--config", str(file), "--model", TINY, "--threads", "1", "--dry-run"]) == 0
    said = plain_lines(capsys.readouterr().out)
    assert {"lr = 0.0003", "group-size = 4", 'set = ["roles.solver.sampling.max_tokens=64"]'} <= set(said)


@pytest.mark.whole
def test_the_result_of_a_run_alone_goes_to_stdout_as_json(tmp_path, capfd):
    out = tmp_path / "run"
    assert main(["run", "grpo", "--smoke", "--json", *SMALL, "--steps", "1", "--out", str(out)]) == 0
    result = capfd.readouterr()
    assert json.loads(result.out) == json.loads((out / "summary.json").read_text())
    assert "measuring the start" in result.err and "report: " in result.err
    assert main(["resume", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["steps"] == 1


@pytest.mark.whole
@pytest.mark.parametrize("words", ["list", "doctor", f"doctor --model {TINY}", "export shipped", "check data"])
def test_every_command_with_figures_gives_them_as_json(words, tmp_path, capfd):
    more = {"check data": [str(written(tmp_path, "ours"))], "export shipped": ["--role", "solver", "--out"]}.get(words)
    out = [str(tmp_path / "model")] if words.startswith("export") else []
    assert main([*words.split(), *(more or []), *out, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    match words.split()[0]:
        case "list":
            (grpo,) = [one for one in found["recipes"] if one["name"] == "grpo"]
            assert grpo["parameters"]["estimator"] == "grpo" and found["settings"]["group_size"] == 8
            assert found["recipes"][1] == grpo and grpo["question"] == "begin here"
            assert {one["name"] for one in found["recipes"]} >= set(RECIPES)
        case "doctor":
            assert found["missing"] == [] and found["packages"]["torch"] and found["cores"] > 0
            assert ("--model" in words) == (TINY in found["models"]) and found["models"]["shipped"]["parameters"] > 0
        case "export":
            assert found["bytes"]["model.safetensors"] == (tmp_path / "model" / "model.safetensors").stat().st_size
        case "check":
            assert found["rows"] == 40


def test_the_doctor_looks_for_every_package_that_cotrain_may_use():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [re.split(r"[<>=\[]", word)[0] for word in project["dependencies"]]
    assert sorted(NEEDED) == sorted(names)
    for package, extra in OPTIONAL.items():
        assert any(word.startswith(package) for word in extras[extra])
    assert set(OPTIONAL.values()) | {"docs", "notebook", "dev"} == set(extras)


def test_the_doctor_looks_at_a_model_that_is_named(capsys):
    command_refuses(["doctor", "--model", "./nowhere"], "E_MODEL_NOT_FOUND: './nowhere'", capsys)


@pytest.mark.whole
def test_the_result_of_a_stage_as_json(tmp_path, capfd):
    words = ["sft", "--model", TINY, "--tokens", "2048", "--batch-tokens", "1024", "--length", "512", "--threads", "1"]
    assert main([*words, "--json", "--out", str(tmp_path / "model")]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["finished"] and found["step"] == 2 and found["loss"] > 0


ROWS = [(f"Tom has {i} apples and buys {i + 3}. How many has he now?", str(2 * i + 3)) for i in range(40)]


def asked(question):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]


def written(folder, layout):
    """The rows in a layout that others use; the file."""
    names, ending, wrap = LAYOUTS[layout]
    rows = [dict(zip(names, wrap(*row), strict=True)) for row in ROWS]
    file = folder / f"rows.{ending}"
    if ending == "csv":
        with file.open("w", newline="") as stream:
            table = csv.DictWriter(stream, names)
            table.writeheader()
            table.writerows(rows)
    else:
        text = json.dumps(rows) if ending == "json" else "".join(json.dumps(row) + "\n" for row in rows)
        file.write_text(text)
    return file


LAYOUTS = {  # names of the columns, ending of the file, what stands in a row
    "ours": (("question", "answer"), "jsonl", lambda q, a: (q, a)),
    "trl": (("prompt", "solution"), "jsonl", lambda q, a: (asked(q), a)),
    "spelled": (("Prompt", "Ground Truth"), "csv", lambda q, a: (q, a)),
    "array": (("Problem", "final-answer"), "json", lambda q, a: (q, a)),
    "worked": (("problem", "solution"), "jsonl", lambda q, a: (q, f"We add both.\nThis is $\\boxed{{{a}}}$.")),
    "number": (("query", "expected_answer"), "jsonl", lambda q, a: (q, int(a))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_data_of_others_is_read_and_shown(layout, tmp_path, capsys):
    file = written(tmp_path, layout)
    assert main(["check", "data", str(file), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)["seen"]
    (question, answer), _, _ = LAYOUTS[layout]
    assert (seen["question"], seen["answer"]) == (question, answer)
    first = f"Be brief.\n\n{ROWS[0][0]}" if layout == "trl" else ROWS[0][0]  # its system message is asked too
    assert (seen["first_question"], seen["first_answer"]) == (first, ROWS[0][1])
    source = JsonlTasks(file)
    assert {split: source.size(split) for split in SPLITS} == seen["splits"]
    assert bool(source.notes) == (layout != "ours")
    source.close()


@pytest.mark.whole
def test_columns_of_any_name_are_named_by_flags(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"frage": q, "loesung": a, "question": "no"}) + "\n" for q, a in ROWS))
    names = ["--question-column", "frage", "--answer-column", "loesung"]
    assert main(["check", "data", str(file), *names]) == 0
    assert "a run sees: question from 'frage', answer from 'loesung'" in capsys.readouterr().out
    run = ["run", "grpo", "--model", TINY, "--threads", "1", "--data", str(file), "--dry-run"]
    assert main([*run, *names]) == 0
    flags = capsys.readouterr().out
    assert 'tasks = "jsonl:frage,loesung"' in flags
    (tmp_path / "mine.toml").write_text(flags)
    assert main(["run", "--config", str(tmp_path / "mine.toml"), "--dry-run"]) == 0
    assert plain_lines(capsys.readouterr().out) == plain_lines(flags)
    command_refuses(
        [*run, "--answer-column", "frage", "--tasks", "words"],
        "E_FLAG_NEEDS_DATA_FILE: --answer-column | 'words'",
        capsys,
    )


@pytest.mark.whole
@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"frage": "1 + 1?", "loesung": "2"}, "E_FIELD_MISSING: --question-column 'NAME'"),
        ({"The Question": "1 + 1?", "Gold Answer": "2"}, "E_FIELD_MISSING: --question-column 'The Question'"),
        ({"question": "1 + 1?", "loesung": "2"}, "E_FIELD_MISSING: 'answer'"),
        ({"problem": "1 + 1?", "solution": "one and " * 20}, "E_NO_FINAL_ANSWER: --answer-column"),
        ({"prompt": [{"role": "user"}], "answer": "2"}, "E_FIELD_NOT_MESSAGES: {role, content}"),
        ({"prompt": [*asked("1?"), *asked("2?")], "answer": "2"}, "E_TWO_USER_MESSAGES: 2 messages"),
        (
            {"prompt": [*asked("1?"), {"role": "assistant", "content": "1"}], "answer": "2"},
            "E_MESSAGE_ROLE: 'assistant'",
        ),
        ({"prompt": "1 + 1?", "completion": "2", "label": True}, "E_DATA_LAYOUT_NOT_PLAIN: prompt and completion"),
    ],
)
def test_a_row_that_cannot_be_guessed_says_what_to_do(row, code, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    command_refuses(["run", "grpo", "--data", file, "--out", tmp_path / "run"], code, capsys)


@pytest.mark.parametrize("size, rate", [(900_000, 1e-3), (135_000_000, 2e-5)])
def test_the_rate_of_a_tuning_follows_the_size_of_its_model(size, rate, monkeypatch, tmp_path, capsys):
    rates = []

    def tune(*given, lr, **more):
        rates.append(lr)
        raise ConfigError("seen")

    monkeypatch.setattr("cotrain.pretraining.sft.sft", tune)
    monkeypatch.setattr("cotrain.config.large_model_defaults._known_size", lambda model: size)
    assert main(["sft", "--model", TINY, "--out", str(tmp_path / "out")]) == 2
    assert rates == [rate] and "seen" in capsys.readouterr().err
