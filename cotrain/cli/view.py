"""The command ``cotrain view``."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from cotrain.cli.flags import Parser, whole_number
from cotrain.core.verbosity import print_notice
from cotrain.reports.follow import RECIPE
from cotrain.reports.foreign import as_run_directory
from cotrain.reports.places import MOST_PLACES, ViewPlace, find_places
from cotrain.reports.view_server import HOST, Viewer, listen

POLL_SECONDS = 0.1  # how soon the server of ``serve_beside`` sees that the run has begun, or is over


def view(words: Sequence[str]) -> int:
    """Show a run, a comparison, a study or all of a folder in a browser; a run that goes on is followed. Rollouts of
    another trainer are shown as they are now."""
    parser = Parser(prog="cotrain view", description=view.__doc__)
    parser.add_argument(
        "place",
        metavar="DIR",
        help="a run, comparison or study, or a folder of them, or rollouts of another trainer; DIR#r:12:3:0 is one "
        "of its screens or rollouts",
    )
    parser.add_argument(
        "--port",
        type=whole_number(0, 65535),
        default=0,
        metavar="N",
        help="port to listen on; 0: any that is free (default: 0)",
    )
    parser.add_argument("--open", action="store_true", help="open the browser of this machine")
    args = parser.parse_strictly(words)
    place, screen = split_address(args.place)
    with as_run_directory(place) as folder, Viewer(find_places(folder), folder) as viewer:
        return _serve(viewer, folder, args.port, screen, opens=args.open)


def _serve(viewer: Viewer, folder: Path, port: int, screen: str, *, opens: bool) -> int:
    """Serve the page until Ctrl-C."""
    with listen(viewer, port) as server:
        address = f"http://{HOST}:{server.server_address[1]}/{viewer.token}/{screen}"
        if viewer.left_out:
            print_notice(
                f"note: the first {MOST_PLACES} things of {folder} are shown, and {viewer.left_out} are not; for the "
                "others name a folder inside"
            )
        print(f"{address}  (this machine alone; Ctrl-C to leave)", flush=True)
        if opens:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


@contextmanager
def serve_beside(folder: Path) -> Iterator[str]:
    """Serve the page of a run that this process is about to begin, until the body of the ``with`` ends. Yields a line
    with the address, for the user. The browser opens, if this machine has one.

    A request that comes before the run has written its recipe is kept waiting until then.
    """
    over = threading.Event()
    place = ViewPlace(kind="run", path=folder, name=folder.resolve().name)
    with Viewer([place], folder) as viewer, listen(viewer, 0) as server:
        server.timeout = POLL_SECONDS

        def serve() -> None:
            # Not serve_forever: its ``shutdown`` would wait without an end for a thread that never got to serve.
            while not over.is_set():
                if (folder / RECIPE).is_file():
                    server.handle_request()
                else:
                    over.wait(POLL_SECONDS)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"http://{HOST}:{server.server_address[1]}/{viewer.token}/"
        if sys.platform in ("darwin", "win32") or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
            webbrowser.open(address)
        try:
            yield f"watch it in a browser while it goes on: {address}  (this machine alone)"
        finally:
            over.set()
            thread.join(timeout=5)


def split_address(words: str) -> tuple[Path, str]:
    """The directory, and the screen of its page: ``runs/mine#r:12:3:0`` is one rollout, as in the page's address. A
    path that exists is a directory, even with a # in its name."""
    name, hash_mark, screen = words.partition("#")
    if not hash_mark or Path(words).exists():
        return Path(words), ""
    return Path(name), f"#{quote(screen, safe=':;=,-')}"
