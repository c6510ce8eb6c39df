"""The command ``cotrain serve``."""

from __future__ import annotations

from collections.abc import Sequence

from cotrain.cli.common import add_device_flag, add_threads_flag, device_of, load_libraries, set_threads
from cotrain.cli.flags import Parser, add_trust_flag, whole_number
from cotrain.core.errors import ConfigError, install_extra
from cotrain.storage.schemas import refuse_missing


def serve(words: Sequence[str]) -> int:
    """Serve a run's roles with OpenAI's API, and /v1/verify."""
    parser = Parser(prog="cotrain serve", description=serve.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run, or a model: a directory or a Hub name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all, without any password")
    parser.add_argument(
        "--port", type=whole_number(0, 65535), default=8000, metavar="N", help="port to listen on; 0: any that is free"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a further name in Host headers to answer to"
    )
    add_device_flag(parser)
    add_threads_flag(parser)
    parser.add_argument(
        "--record", metavar="FILE", help="append each answer to a chat, with its tokens, to these JSON lines"
    )
    add_trust_flag(parser)
    args = parser.parse_strictly(words)
    refuse_missing(args.directory)
    _check_installed()
    load_libraries()
    set_threads(args.threads)
    from cotrain.serving import app

    return app.run_server(
        args.directory,
        host=args.host,
        port=args.port,
        allowed_hosts=args.allow_host,
        device=device_of(args.device),
        record=args.record,
    )


def _check_installed() -> None:
    """Raise ConfigError where the packages of the server are not here."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise ConfigError(
            f"cotrain serve needs {error.name}; install it with: {install_extra('serve')}", code="E_SERVE_NOT_INSTALLED"
        ) from None
