"""The command ``cotrain serve``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cotrain.cli.flags import Parser, add_count, add_trust_flag, whole_number
from cotrain.core.errors import ConfigError
from cotrain.core.threads import choose_threads


def serve(words: Sequence[str]) -> int:
    """Serve a run's roles with OpenAI's API, and /v1/verify."""
    parser = Parser(prog="cotrain serve", description=serve.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run, or a model: a directory or a Hub name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all, without any password")
    parser.add_argument("--port", type=whole_number(0, 65535), default=8000, metavar="N", help="0: any that is free")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a further name in Host headers to answer to"
    )
    parser.add_argument(
        "--device", default="auto", help="auto (cuda where there is one, else cpu), cpu, cuda, cuda:1 …"
    )
    add_count(parser, "--threads", "CPU threads (default: OMP_NUM_THREADS, or all cores)")
    parser.add_argument(
        "--record", metavar="FILE", help="append each answer to a chat, with its tokens, to these JSON lines"
    )
    add_trust_flag(parser)
    args = parser.parse_strictly(words)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from cotrain.serving import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise ConfigError(f"cotrain serve needs {error.name}; install it with: pip install 'cotrain[serve]'") from None
    import torch
    from transformers.utils import logging

    from cotrain.distributed.local import resolve_device

    logging.disable_progress_bar()
    torch.set_num_threads(choose_threads(args.threads))
    device = resolve_device(args.device)
    return app.run_server(
        args.directory, host=args.host, port=args.port, hosts=args.allow_host, device=device, record=args.record
    )
