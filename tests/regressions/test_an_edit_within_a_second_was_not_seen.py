"""A file of the user's own that kept its size and its second was loaded from its old byte code."""

import os
import sys

from cotrain.core.user_code import load_file


def test_an_edit_within_a_second_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for word in ("one", "two"):
        file.write_text(f"said = {word!r}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert load_file(str(file), "here").said == word
