"""A model directory is served as it is, without a run."""

import shutil
from pathlib import Path

import pytest
import torch
from served_asks import HERE, ask

from cotrain.rollout.common_roles import FORMAT_MARK
from cotrain.runs import opening
from tests.helpers import TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    place = shutil.copytree(TINY, tmp_path_factory.mktemp("bare") / "model")
    (place / FORMAT_MARK).unlink()
    return place


@pytest.fixture(scope="module")
def client(folder):
    from starlette.testclient import TestClient

    from cotrain.serving.app import make_application
    from cotrain.serving.models import ServedRun

    served = ServedRun(opening.open_trainer(str(folder)))  # as the command opens it
    yield TestClient(make_application(served), base_url=HERE, raise_server_exceptions=False)
    served.engine.close()


def test_its_solver_and_the_model_itself_are_listed(client):
    listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert listed == ["solver", "policy/generator"]
    assert client.get("/health").json()["step"] == 0


def test_it_answers_as_itself_and_as_a_solver(client, folder):
    asked = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0, "max_tokens": 12}
    plain = ask(client, "chat/completions", model="policy/generator", **asked)
    assert plain["choices"][0]["finish_reason"] in ("stop", "length") and plain["usage"]["completion_tokens"] > 0
    solver = ask(client, "chat/completions", model="solver", **asked)
    assert solver["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]  # its problem is put into a prompt
    raw = ask(client, "completions", model="policy/generator", prompt="There are", max_tokens=4, temperature=0)
    assert raw["usage"]["completion_tokens"] <= 4 and raw["choices"][0]["text"]


def test_nothing_is_written_beside_it(client, folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in Path(TINY).iterdir() if path.name != FORMAT_MARK
    )
