"""The command ``cotrain``. Bad input ends with one line on stderr and exit code 2; a run that stopped as it could not
go on with 1; an interrupted one with 130 (Ctrl-C), 143 (SIGTERM) or 129 (a terminal that closes)."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

from cotrain.core.errors import CotrainError, RowError
from cotrain.core.threads import wait_briefly
from cotrain.core.verbosity import json_text, print_error, print_traceback, secure_streams, set_level, shows_all

USAGE = """\
Train several language models together with reinforcement learning.

first
  cotrain demo                     co-train a generator and a verifier, here, in
                                   three minutes; writes runs/demo/report.html
  cotrain list                     the recipes, by what they are for
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
  cotrain diff A [B]               two runs side by side: settings, figures, texts;
                                   of one, what of its code was changed since
  cotrain audit FILE …             is a judge being fooled? in rollouts of TRL,
                                   veRL, verifiers and others, or of any file
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
before a run
  cotrain teach solver, teach verifier           what a role will say, from data
  cotrain sft                                    any other conversations
  cotrain tokenizer, pretrain                    a base model, from nothing

`cotrain COMMAND --help` lists the flags of each; all take --log-level."""

RUNS = ("run", "train", "dpo", "reward")
LENIENT = (*RUNS, "compare", "sft", "teach", "pretrain", "tokenizer")  # commands that can leave rows out
LONG = (*RUNS, "resume", "demo", "compare", "study", "pretrain", "sft", "teach")
AS_JSON = (*LONG, "paraphrase", "list", "doctor", "export", "audit")  # what they say on the way goes to stderr
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    if argv is None:
        secure_streams()
        argv = sys.argv[1:]
    argv = list(argv)
    set_level("debug" if _asks_for_debug(argv) else None)  # for errors before the command reads its flags
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
        command = COMMANDS.get(argv[0]) or registered_command(argv[0])
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
        known_as = f" [{error.code}]" if shows_all() else ""
        print_error(f"{error}{hint}{known_as}")
        if "--json" in argv:
            print(json_text({"error": {"code": error.code, "message": f"{error}{hint}"}}), flush=True)
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
        rust_error = re.search(r"\(os error (\d+)\)$", str(error))  # the form of libraries in Rust
        code = None
        if isinstance(error, OSError):
            code = error.errno
        elif rust_error:
            code = int(rust_error[1])
        if code not in OUTSIDE:
            raise
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        print_error(f"{where}{os.strerror(code).lower()}; choose another place, or mend this one")
        return 2


def _asks_for_debug(argv: Sequence[str]) -> bool:
    return "--log-level=debug" in argv or ("--log-level", "debug") in pairwise(argv)


def _memory_ran_out(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from cotrain.models.memory import out_of_memory

    return out_of_memory(error)


def registered_command(name: str) -> Command:
    """The function of a command that an installed package brings. Raises UnknownName."""
    from cotrain.core.registry import COMMANDS as GROUP
    from cotrain.core.registry import load_named

    command: Command = load_named(GROUP, name, {}, "command", COMMANDS)
    return command


# -- The commands. Each function imports what it needs, so that `cotrain --help` imports nothing else.


Command = Callable[[Sequence[str]], int]  # takes the words behind its name, returns the exit code


def demo_command(argv: Sequence[str]) -> int:
    from cotrain.cli.resume import demo

    return demo(argv)


def list_command(argv: Sequence[str]) -> int:
    from cotrain.cli.inspect_runs import list_recipes

    return list_recipes(argv)


def run_command(argv: Sequence[str]) -> int:
    from cotrain.cli.run import run

    return run(argv)


def dpo_command(argv: Sequence[str]) -> int:
    from cotrain.cli.pretraining import dpo

    return dpo(argv)


def reward_command(argv: Sequence[str]) -> int:
    from cotrain.cli.pretraining import reward

    return reward(argv)


def resume_command(argv: Sequence[str]) -> int:
    from cotrain.cli.resume import resume

    return resume(argv)


def eval_command(argv: Sequence[str]) -> int:
    from cotrain.cli.inspect_runs import evaluate

    return evaluate(argv)


def check_command(argv: Sequence[str]) -> int:
    from cotrain.cli.check import check

    return check(argv)


def compare_command(argv: Sequence[str]) -> int:
    from cotrain.cli.compare import compare

    return compare(argv)


def study_command(argv: Sequence[str]) -> int:
    from cotrain.cli.compare import study

    return study(argv)


def report_command(argv: Sequence[str]) -> int:
    from cotrain.cli.inspect_runs import report

    return report(argv)


def audit_command(argv: Sequence[str]) -> int:
    from cotrain.cli.audit import audit

    return audit(argv)


def view_command(argv: Sequence[str]) -> int:
    from cotrain.cli.view import view

    return view(argv)


def top_command(argv: Sequence[str]) -> int:
    from cotrain.cli.top import top

    return top(argv)


def why_command(argv: Sequence[str]) -> int:
    from cotrain.cli.why import why

    return why(argv)


def diff_command(argv: Sequence[str]) -> int:
    from cotrain.cli.diff import diff

    return diff(argv)


def attack_command(argv: Sequence[str]) -> int:
    from cotrain.cli.attack import attack

    return attack(argv)


def xplay_command(argv: Sequence[str]) -> int:
    from cotrain.cli.attack import xplay

    return xplay(argv)


def chat_command(argv: Sequence[str]) -> int:
    from cotrain.cli.inspect_runs import chat

    return chat(argv)


def serve_command(argv: Sequence[str]) -> int:
    from cotrain.cli.serve import serve

    return serve(argv)


def export_command(argv: Sequence[str]) -> int:
    from cotrain.cli.inspect_runs import export

    return export(argv)


def push_command(argv: Sequence[str]) -> int:
    from cotrain.cli.push import push

    return push(argv)


def convert_command(argv: Sequence[str]) -> int:
    from cotrain.cli.convert import convert

    return convert(argv)


def doctor_command(argv: Sequence[str]) -> int:
    from cotrain.cli.inspect_runs import doctor

    return doctor(argv)


def tokenizer_command(argv: Sequence[str]) -> int:
    from cotrain.cli.pretraining import tokenizer

    return tokenizer(argv)


def pretrain_command(argv: Sequence[str]) -> int:
    from cotrain.cli.pretraining import pretrain

    return pretrain(argv)


def sft_command(argv: Sequence[str]) -> int:
    from cotrain.cli.sft import sft

    return sft(argv)


def teach_command(argv: Sequence[str]) -> int:
    from cotrain.cli.teach import teach

    return teach(argv)


def paraphrase_command(argv: Sequence[str]) -> int:
    from cotrain.cli.pretraining import paraphrase

    return paraphrase(argv)


COMMANDS: dict[str, Command] = {
    "demo": demo_command,
    "list": list_command,
    "run": run_command,
    "train": run_command,  # as others call it
    "dpo": dpo_command,
    "reward": reward_command,
    "resume": resume_command,
    "eval": eval_command,
    "check": check_command,
    "compare": compare_command,
    "study": study_command,
    "report": report_command,
    "audit": audit_command,
    "view": view_command,
    "top": top_command,
    "why": why_command,
    "diff": diff_command,
    "attack": attack_command,
    "xplay": xplay_command,
    "chat": chat_command,
    "serve": serve_command,
    "export": export_command,
    "push": push_command,
    "convert": convert_command,
    "doctor": doctor_command,
    "tokenizer": tokenizer_command,
    "pretrain": pretrain_command,
    "sft": sft_command,
    "teach": teach_command,
    "paraphrase": paraphrase_command,
}


if __name__ == "__main__":
    sys.exit(main())
