"""A run that was begun from Python, and not by a command, said nothing until its end: nobody had set the level."""

import importlib
import logging

import pytest

from cotrain.core import verbosity


@pytest.mark.parametrize(("before", "shown"), [(logging.NOTSET, True), (logging.INFO, True), (logging.WARNING, False)])
def test_progress_is_shown_where_no_level_was_set(before, shown):
    logging.getLogger("cotrain").setLevel(before)
    importlib.reload(verbosity)
    assert verbosity.shows_progress() is shown and verbosity.shows_notes()
