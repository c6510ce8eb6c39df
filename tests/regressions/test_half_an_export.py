"""An export that was killed left half of a model in its place, which the next try refused to touch; killed in its last
moments it left a model that did not say how its roles are asked."""

from __future__ import annotations

import json
import os

import pytest

from cotrain.serving import export
from cotrain.serving.export import export_policy
from cotrain.storage.file_ops import can_be_filled, filled_directory
from tests.helpers import TINY


def test_of_an_export_there_is_all_or_nothing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(export, "model_card", lambda *given, **named: exit(1))
        export_policy(TINY, "solver", tmp_path / "model")
    assert not list(tmp_path.iterdir())

    (tmp_path / ".model.partial").mkdir()  # as a kill leaves it
    (tmp_path / ".model.partial" / "model-00001-of-00009.safetensors").write_bytes(b"half")
    export_policy(TINY, "solver", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert {"config.json", "model.safetensors", "README.md"} <= {path.name for path in (tmp_path / "model").iterdir()}
    assert "prompts" in json.loads((tmp_path / "model" / "cotrain.json").read_text())


def test_an_empty_working_directory_may_be_filled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with filled_directory(tmp_path) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "sub").mkdir()
        (folder / "sub" / "weights").write_text("w")
    assert sorted(os.listdir()) == ["config.json", "sub"]


def test_an_empty_directory_is_filled_from_within(tmp_path):
    """It may be a file system of its own, such as a volume of a container, into which nothing can be renamed."""
    target = tmp_path / "mounted"
    target.mkdir()
    (target / ".partial").mkdir()  # as a kill leaves it
    assert can_be_filled(target)
    with filled_directory(target) as folder:
        assert folder.parent == target and os.listdir(tmp_path) == ["mounted"]
        (folder / "config.json").write_text("{}")
    assert os.listdir(target) == ["config.json"] and not can_be_filled(target)
