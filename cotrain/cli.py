"""The command ``cotrain``.

    cotrain demo                      five minutes: co-train a generator and a verifier, open the report
    cotrain list                      the recipes and their parameters
    cotrain run RECIPE --out DIR      RECIPE is a name of the list or path/to/file.py:function
    cotrain resume DIR                go on where a run was interrupted
    cotrain eval | report | chat | serve DIR    measure, show, talk to a run, or let programs talk to it
    cotrain eval DIR --suite gsm8k,processbench --data …    scores on benchmarks, as papers give them
    cotrain check data FILE --against TEST    malformed rows, duplicates, overlap, unreadable answers
    cotrain export DIR --role NAME --out MODEL    a trained policy as a plain model directory, with a card
    cotrain push DIR --role NAME --repo owner/name    the same, to the Hugging Face Hub
    cotrain convert nanochat DIR --out MODEL    a checkpoint of another project as a model directory
    cotrain compare A B … --seeds N   several recipes, several seeds, one report
    cotrain tokenizer | pretrain | sft | base    from nothing to a base model
    cotrain doctor                    what is installed and what will be used

Bad input ends with one line on stderr and exit code 2; an interrupted run with 130 (Ctrl-C) or 143 (SIGTERM).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from cotrain.commands.common import quiet
from cotrain.commands.reading import chat, check, doctor, evaluate, export, list_recipes, report
from cotrain.commands.running import compare, demo, resume, run
from cotrain.core.errors import ConfigError, CotrainError, unknown_message

Command = Callable[[Sequence[str]], int]


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    from cotrain.serve import command as server
    from cotrain.stages import commands as stages

    commands: dict[str, Command] = {
        "demo": demo,
        "list": list_recipes,
        "run": run,
        "resume": resume,
        "eval": evaluate,
        "check": check,
        "compare": compare,
        "report": report,
        "chat": chat,
        "serve": server.serve,
        "export": export,
        "push": _command_of("cotrain.push"),
        "convert": _command_of("cotrain.models.nanochat"),
        "doctor": doctor,
        "tokenizer": stages.tokenizer,
        "pretrain": stages.pretrain,
        "sft": stages.sft,
        "base": stages.base,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0
    if words[0] in ("-V", "--version"):
        from cotrain import __version__

        print(f"cotrain {__version__}")
        return 0
    try:
        if words[0] not in commands:
            raise ConfigError(unknown_message("command", words[0], commands))
        return commands[words[0]](words[1:])
    except CotrainError as error:
        print(f"{'' if str(error).startswith('cotrain ') else 'cotrain: '}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cotrain: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _command_of(module: str) -> Command:
    """The function ``command`` of a module that is imported when it is called."""

    def command(words: Sequence[str]) -> int:
        quiet()
        found: Command = importlib.import_module(module).command
        return found(words)

    return command


if __name__ == "__main__":
    sys.exit(main())
