"""``cotrain top``: follow a run in a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from cotrain.cli.flags import Parser
from cotrain.reports.runs import open_run
from cotrain.reports.top import draw_screen, snapshot

PAUSE = 1.0  # seconds between looks


def top(words: Sequence[str]) -> int:
    """Follow a run in a terminal: rewards, truth, speed and alarms. Ctrl-C leaves; the run goes on."""
    parser = Parser(prog="cotrain top", description=top.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run directory")
    parser.add_argument("--once", action="store_true", help="print what there is and leave")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, for scripts")
    args = parser.parse_strictly(words)
    run = open_run(Path(args.directory))
    if args.json:
        print(json.dumps(snapshot(run)))
        return 0
    console = Console(highlight=False)
    if args.once or not console.is_terminal:
        console.print(draw_screen(snapshot(run), console.width))
        return 0
    try:
        screen = draw_screen(snapshot(run), console.width)
        with Live(screen, console=console, screen=True, auto_refresh=False) as display:
            while True:
                time.sleep(PAUSE)
                display.update(draw_screen(snapshot(run), console.width), refresh=True)
    except KeyboardInterrupt:
        return 0
