"""One served run for all tests of the server, which are skipped where its libraries are not installed."""

import importlib.util

import pytest
from served_asks import HERE, ask, body

from cotrain.data.word_problems.source import study_problems
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer

if not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def served():
    from cotrain.serving.models import ServedRun

    found = ServedRun(CoTrainer(tango(steps=1, tasks=study_problems((2, 2)))))
    yield found
    found.engine.close()


@pytest.fixture(scope="session")
def client(served):
    from starlette.testclient import TestClient

    from cotrain.serving.app import make_application

    return TestClient(make_application(served), base_url=HERE, raise_server_exceptions=False)


@pytest.fixture(scope="session")
def task(served):
    return served.trainer.recipe.tasks.get("validation", 3)


@pytest.fixture(scope="session")
def greedy(client, task):
    """The solver's greedy answer to ``task``, as the server gives it."""
    return ask(client, "chat/completions", **body(task))
