"""``cotrain push``: the export and nothing else reaches the Hub, and what is wrong is one line."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.recipes.tango import tango
from cotrain.serving import push
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses


class FakeHub:
    """Takes what HfApi takes."""

    def __init__(self, public=False, error=None):
        self.calls, self.files, self.public, self.error = [], {}, public, error

    def create_repo(self, repo_id, *, private, exist_ok):
        self.calls.append(("create", repo_id, private, exist_ok))
        self.private = private and not self.public
        if self.error:
            raise self.error

    def repo_info(self, repo_id):
        return SimpleNamespace(private=self.private)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        self.calls.append(("upload", repo_id, commit_message))
        self.folder = Path(folder_path)
        self.files = {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("push") / "run"
    small = {"model": TINY, "tasks_per_step": 1, "group_size": 2, "evaluation_tasks": 1, "seed": 3}
    made = tango(steps=2, warmup=1, reviews=2, tasks=EASY, **small)
    api.run(override(made, ["evaluation.splits=[]", "evaluation.group_size=1"]), folder)
    return folder


@pytest.mark.whole
def test_the_export_and_nothing_else_is_uploaded(run, monkeypatch, capsys):
    hub = FakeHub()
    monkeypatch.setattr(push, "get_token", lambda: "hf_secret")
    monkeypatch.setattr(push, "HfApi", lambda: hub)
    assert main(["push", str(run), "--role", "verifier", "--repo", "me/judge", "--private"]) == 0
    assert capsys.readouterr().out == "pushed to https://huggingface.co/me/judge\n"
    assert hub.calls == [("create", "me/judge", True, True), ("upload", "me/judge", "verifier of a cotrain run")]
    expected = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "cotrain.json"}
    assert expected <= set(hub.files) and not {"recipe.json", "provenance.json", "metrics.jsonl"} & set(hub.files)
    assert "# verifier of tango" in hub.files["README.md"].decode() and b"hf_secret" not in b"".join(hub.files.values())
    assert not hub.folder.exists()


@pytest.mark.whole
def test_refusals_are_one_line_and_send_nothing(run, monkeypatch, capsys):
    def fails(hub, code, *words):
        monkeypatch.setattr(push, "HfApi", lambda: hub)
        command_refuses(["push", run, *words], code, capsys)
        assert not hub.files

    judge = ("--role", "verifier", "--repo", "me/judge")
    monkeypatch.setattr(push, "get_token", lambda: None)
    fails(FakeHub(), "E_HUB_TOKEN_MISSING: hf auth login | HF_TOKEN", *judge)
    monkeypatch.setattr(push, "get_token", lambda: "hf_x")
    fails(FakeHub(), "E_REPO_NAME: 'judge' | owner/name", "--role", "verifier", "--repo", "judge")
    fails(FakeHub(), "E_REPO_NAME: 'me/../judge' | owner/name", "--role", "verifier", "--repo", "me/../judge")
    hub = FakeHub()
    fails(hub, "E_NO_SUCH_ROLE_OR_POLICY: 'verifer' | 'verifier'", "--role", "verifer", "--repo", "me/judge")
    assert not hub.calls
    fails(FakeHub(public=True), "E_REPO_IS_PUBLIC: me/judge | --private", *judge, "--private")
    for error in (OSError("403 Forbidden\nstory"), ConnectionError("no route"), RuntimeError("client closed")):
        fails(FakeHub(error=error), f"E_HUB_REFUSED: me/judge | {str(error).splitlines()[0]}", *judge)


def test_the_real_api_has_these_methods():
    import inspect

    from huggingface_hub import HfApi

    for name, needed in (
        ("create_repo", {"private", "exist_ok"}),
        ("repo_info", {"repo_id"}),
        ("upload_folder", {"repo_id", "folder_path", "commit_message"}),
    ):
        assert needed <= set(inspect.signature(getattr(HfApi, name)).parameters)
