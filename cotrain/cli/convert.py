"""``cotrain convert``: a checkpoint of another project as a plain model directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.common import load_libraries
from cotrain.cli.flags import Parser, add_count, one_of
from cotrain.core.errors import DataError


def convert(words: Sequence[str]) -> int:
    """``cotrain convert``."""
    parser = Parser(prog="cotrain convert", description="A checkpoint of another project as a plain model directory.")
    parser.add_argument(
        "format",
        **one_of("format", "nanochat") | {"metavar": "FORMAT"},
        help="program that wrote the checkpoint: nanochat",
    )
    parser.add_argument("directory", metavar="DIR", help="the folder with model_*.pt and meta_*.json")
    parser.add_argument("--out", required=True, metavar="MODEL", help="a new directory")
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="folder of tokenizer.pkl or tokenizer.json (default: looked for)"
    )
    add_count(parser, "--step", "step of the checkpoint (default: the last)", least=0)
    args = parser.parse_strictly(words)
    if not Path(args.directory).is_dir():
        raise DataError(
            f"{args.directory}: no such directory; expected the one with model_*.pt and meta_*.json",
            code="E_NO_SUCH_DIRECTORY",
        )
    load_libraries()
    from cotrain.models import nanochat

    print(f"written to {nanochat.convert(args.directory, args.out, tokenizer=args.tokenizer, step=args.step)}")
    return 0
