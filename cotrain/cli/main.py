"""The command ``cotrain``. Bad input ends with one line on stderr and exit code 2; a run that stopped as it could not
go on with 1; an interrupted one with 130 (Ctrl-C), 143 (SIGTERM) or 129 (a terminal that closes)."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence

from cotrain.core.errors import CotrainError, RowError
from cotrain.core.registry import COMMANDS as REGISTERED
from cotrain.core.registry import load_named
from cotrain.core.threads import wait_briefly
from cotrain.core.verbosity import print_error, print_traceback, secure_streams, set_level, shows_all

USAGE = """\
Train several language models together with reinforcement learning.

first
  cotrain demo                     co-train a generator and a verifier, here, in
                                   three minutes; writes runs/demo/report.html
  cotrain list                     the recipes and their parameters
  cotrain doctor                   what is installed and what a run would use
train
  cotrain run RECIPE --out DIR     a name of the list, or path/to/file.py:function
  cotrain dpo --data FILE --out DIR  a policy from preferences; reward: a judge
  cotrain resume DIR               go on where a run was interrupted
  cotrain compare A B --out DIR    several recipes, several seeds, one report
  cotrain study FILE.toml          comparisons that were written down before
look
  cotrain view DIR                 a run in the browser, while it goes on too
  cotrain top DIR                  the same in a terminal; --json for scripts
  cotrain why DIR ROLLOUT          which reward came from what
  cotrain diff A B                 two runs side by side: settings, figures, texts
  cotrain report DIR               write report.html anew
  cotrain eval DIR                 measure on held-out problems, or with --suite
                                   on benchmarks: gsm8k, math500, processbench …
  cotrain attack DIR               how often the verifier believes text that tries
                                   to fool it, by family
  cotrain xplay DIR --every N      generators and verifiers of all steps, crossed
  cotrain chat DIR                 type a problem, see the steps and verdicts
  cotrain serve DIR                a server that speaks OpenAI's API
bring in, take out
  cotrain check data FILE          what is wrong with a file of questions
  cotrain paraphrase --data FILE   the questions in other words, by a model
  cotrain export DIR --role NAME --out MODEL     a policy as a plain model
  cotrain push DIR --role NAME --repo OWNER/NAME the same, to the Hub
  cotrain convert nanochat DIR --out MODEL       a checkpoint of nanochat
from nothing
  cotrain tokenizer, pretrain, sft               stages of a base model

`cotrain COMMAND --help` lists the flags of each; all take --log-level."""

RUNS = ("run", "train", "dpo", "reward")
LENIENT = (*RUNS, "compare", "sft", "pretrain", "tokenizer")  # commands that can leave rows out
LONG = (*RUNS, "resume", "demo", "compare", "study", "pretrain", "sft")
AS_JSON = (*LONG, "paraphrase", "list", "doctor", "export")  # what they say on the way goes to stderr
OUTSIDE = {  # what a disk or its owner refuses, and no bug of ours
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENAMETOOLONG,
    errno.EFBIG,
    errno.ENOTDIR,
    errno.EISDIR,
}

COMMANDS = {  # command → where its function is, which is imported when it is called
    "demo": "cli.resume:demo",
    "list": "cli.inspect_runs:list_recipes",
    "run": "cli.run:run",
    "train": "cli.run:run",  # as others call it
    "dpo": "cli.pretraining:dpo",
    "reward": "cli.pretraining:reward",
    "resume": "cli.resume:resume",
    "eval": "cli.inspect_runs:evaluate",
    "check": "cli.check:check",
    "compare": "cli.compare:compare",
    "study": "cli.compare:study",
    "report": "cli.inspect_runs:report",
    "view": "cli.view:view",
    "top": "cli.top:top",
    "why": "cli.why:why",
    "diff": "cli.diff:diff",
    "attack": "cli.attack:attack",
    "xplay": "cli.attack:xplay",
    "chat": "cli.inspect_runs:chat",
    "serve": "cli.serve:serve",
    "export": "cli.inspect_runs:export",
    "push": "cli.push:push",
    "convert": "cli.convert:convert",
    "doctor": "cli.inspect_runs:doctor",
    "tokenizer": "cli.pretraining:tokenizer",
    "pretrain": "cli.pretraining:pretrain",
    "sft": "cli.pretraining:sft",
    "paraphrase": "cli.pretraining:paraphrase",
}
LOUD = ("attack", "xplay", "push", "convert")  # their libraries are told to be quiet before they are imported


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    if argv is None:
        secure_streams()
        argv = sys.argv[1:]
    argv = list(argv)
    set_level(None)
    if (trust := sys.modules.get("cotrain.core.trust")) is not None:  # consent is for one command
        trust.set_consent(False)
    wait_briefly()
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if argv[0] in ("-V", "--version"):
        from cotrain import __version__

        print(f"cotrain {__version__}")
        return 0
    try:
        command = find_command(argv[0])
        by_itself = "--dry-run" in argv and argv[0] in RUNS  # prints its settings
        if "--json" not in argv or by_itself or argv[0] not in AS_JSON:
            return command(argv[1:])
        from cotrain.cli.json_output import print_result

        return print_result(command, argv[1:])
    except CotrainError as error:
        if shows_all():
            print_traceback(type(error), error, error.__traceback__)
        aside = isinstance(error, RowError) and argv[0] in LENIENT
        hint = "; mend the row, or set such rows aside with --lenient" if aside else ""
        print_error(f"{error}{hint}")
        return 2
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except Exception as error:
        from cotrain.core.user_code import failure_of, passed_user_file

        if passed_user_file(error):  # a method, a measure or a task source of the user's own
            if shows_all():
                print_traceback(type(error), error, error.__traceback__)
            print_error(failure_of(error))
            return 2
        if _memory_ran_out(error):
            print_error("memory ran out; free some, and go on with `cotrain resume`")
            return 1
        rust_error = re.search(r"\(os error (\d+)\)$", str(error))  # as the libraries in Rust say it
        code = error.errno if isinstance(error, OSError) else int(rust_error[1]) if rust_error else None
        if code not in OUTSIDE:
            raise
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        print_error(f"{where}{os.strerror(code).lower()}; choose another place, or mend this one")
        return 2


def _memory_ran_out(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from cotrain.models.memory import out_of_memory

    return out_of_memory(error)


def find_command(name: str) -> Callable[[Sequence[str]], int]:
    """The function of a command, of this package or registered by another one: it takes the words behind the name, and
    returns the exit code. Raises UnknownName."""
    if name in LOUD:
        from cotrain.cli.common import quiet_libraries

        quiet_libraries()
    places = {command: f"cotrain.{place}" for command, place in COMMANDS.items()}
    found: Callable[[Sequence[str]], int] = load_named(REGISTERED, name, places, "command")
    return found


if __name__ == "__main__":
    sys.exit(main())
