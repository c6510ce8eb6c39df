"""Each error that the package raises has a code, written where it is raised or in its class, with one meaning."""

import ast
import json
import pickle
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from cotrain.cli.main import main
from cotrain.core.errors import ConfigError, RunDirectoryError, UnknownName
from cotrain.storage.file_ops import DiskError
from tests.sentences import FILE, ROOT, golden, refuses, sentence_of

PACKAGES = (ROOT / "cotrain", ROOT / "zoo" / "cotrain_zoo")
BASE = "cotrain.core.errors.CotrainError"
SPELLING = re.compile(r"E_[A-Z0-9]+(_[A-Z0-9]+)*")
ONE_MEANING = {  # classes that say one thing each, so that their own code is enough
    "Deadlock",
    "Diverged",
    "EngineLost",
    "NonFiniteLoss",
    "NotFinite",
    "NotGraded",
    "NotLoaded",
    "NotRecorded",
    "RankShort",
    "ServerSilent",
    "TooLong",
    "TooManyFailures",
    "UnknownName",
}
ALLOWED = 0  # lines that raise without a code. It may only get smaller


@cache
def modules() -> dict[str, ast.Module]:
    return {
        ".".join(file.relative_to(package.parent).with_suffix("").parts): ast.parse(file.read_text("utf-8"))
        for package in PACKAGES
        for file in sorted(package.rglob("*.py"))
    }


@cache
def nodes_of(module: str) -> list[ast.ClassDef | ast.ImportFrom | ast.Call]:
    """What this file looks at; all that is parsed is walked through once."""
    return [node for node in ast.walk(modules()[module]) if isinstance(node, ast.ClassDef | ast.ImportFrom | ast.Call)]


@cache
def names_in(module: str) -> dict[str, str]:
    """Name → the whole name of the class that it is there: defined or imported."""
    names = {}
    for node in nodes_of(module):
        if isinstance(node, ast.ClassDef):
            names[node.name] = f"{module}.{node.name}"
        if isinstance(node, ast.ImportFrom) and node.module:
            place = "cotrain.core.errors" if node.module == "cotrain" else node.module  # cotrain names them too
            names |= {alias.asname or alias.name: f"{place}.{alias.name}" for alias in node.names}
    return names


@cache
def error_classes() -> set[str]:
    """The whole names of all classes of errors that cotrain raises on purpose."""
    bases = {}
    for module in modules():
        names = names_in(module)
        for node in nodes_of(module):
            if isinstance(node, ast.ClassDef):
                parents = [names.get(base.id, base.id) for base in node.bases if isinstance(base, ast.Name)]
                bases[f"{module}.{node.name}"] = parents
    found = {BASE}
    while more := {name for name, parents in bases.items() if found & set(parents)} - found:
        found |= more
    return found


@cache
def raised() -> list[tuple[str, str, ast.Call]]:
    """Each call of a class of errors: where, which class, the call."""
    calls = []
    for module in modules():
        names = names_in(module)
        for node in nodes_of(module):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if names.get(node.func.id) in error_classes():
                calls.append((f"{module}:{node.lineno}", node.func.id, node))
    return calls


def codes_of(call: ast.Call) -> list[str] | None:
    """The codes that are written there; [] where it is that of a cause; None where there is none."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)
    if given is None:
        return None
    return [node.value for node in ast.walk(given) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_error_is_raised_with_a_code():
    without = [where for where, kind, call in raised() if kind not in ONE_MEANING and codes_of(call) is None]
    assert len(raised()) > 800
    assert len(without) <= ALLOWED, f"add code=…: {', '.join(without)}"


def test_a_code_is_spelled_well_and_belongs_to_one_class():
    kinds = defaultdict(set)
    for _, kind, call in raised():
        for code in codes_of(call) or ():
            kinds[code].add(kind)
    assert [code for code in kinds if not SPELLING.fullmatch(code)] == []
    assert {code: several for code, several in kinds.items() if len(several) > 1} == {}


def test_the_file_of_sentences_knows_only_codes_and_tests_that_exist():
    written = {code for _, _, call in raised() for code in codes_of(call) or ()}
    for code, kept in golden().items():
        assert code in written or code.startswith("E_UNKNOWN_") or f'code = "{code}"' in _source(), code
        file, _, test = kept["test"].partition("::")
        function = test.partition("[")[0]
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), kept["test"]
    assert FILE.read_text("utf-8") == json.dumps(golden(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


@cache
def _source() -> str:
    return "".join(file.read_text("utf-8") for package in PACKAGES for file in sorted(package.rglob("*.py")))


def test_a_code_goes_where_its_error_goes():
    for error in (
        ConfigError("a", code="E_A"),
        RunDirectoryError("a", code="E_A"),
        DiskError("a", 28, code="E_A"),
        UnknownName("word", "a", ["b"], code="E_A"),
    ):
        sent = pickle.loads(pickle.dumps(error))  # noqa: S301  one of our own, as Ray sends it
        assert (type(sent), sent.code, str(sent)) == (type(error), "E_A", str(error))


def test_an_error_without_a_code_has_that_of_its_class():
    assert ConfigError("as a user's own recipe raises it").code == "E_CONFIG"


def test_an_unknown_name_has_the_code_of_its_kind():
    codes = [UnknownName(kind, "a", ["b"]).code for kind in ("role", "role of suite 'gsm8k'", "Monte-Carlo label")]
    assert codes == ["E_UNKNOWN_ROLE", "E_UNKNOWN_ROLE", "E_UNKNOWN_MONTE_CARLO_LABEL"]


def test_commands_show_the_code_as_json_and_at_the_level_debug(capsys):
    assert main(["run", "tanog", "--out", "nowhere"]) == 2
    assert "E_UNKNOWN_RECIPE" not in "".join(capsys.readouterr())
    assert main(["run", "tanog", "--out", "nowhere", "--log-level", "debug"]) == 2
    assert capsys.readouterr().err.endswith(" [E_UNKNOWN_RECIPE]\n")
    assert main(["run", "tanog", "--out", "nowhere", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["code"] == "E_UNKNOWN_RECIPE" and "did you mean 'tango'" in told["message"]


def test_a_sentence_leaves_out_what_other_libraries_say(tmp_path):
    file = Path(tmp_path / "here.txt")
    try:
        try:
            json.loads("{")
        except ValueError as error:
            raise ConfigError(f"{file}: not JSON ({error})", code="E_A") from error
    except ConfigError as error:
        assert sentence_of(error) == "TMP/here.txt: not JSON (…)"


def test_refuses_wants_the_code_and_each_name():
    with refuses("E_A", names=("row 3", "'x'")):
        raise ConfigError("row 3: 'x' is none", code="E_A")
    for wanted in ("E_B", "E_A: row 4"):
        try:
            with refuses(wanted):
                raise ConfigError("row 3: 'x' is none", code="E_A")
        except AssertionError:
            continue
        raise RuntimeError(wanted)
