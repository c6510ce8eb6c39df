"""A judge of another server is looked at before a run, and read in the form in which it writes."""

import gzip
import json
import re
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from cotrain.cli.main import main
from cotrain.runs.changes import rebuild_recipe
from tests.distributed.servers import running
from tests.helpers import TINY


async def review_in_arrows(request):
    """Every review calls the first step wrong and all others right, in the same words however it is asked."""
    asked = (await request.json())["messages"][-1]["content"]
    count = int(re.search(r"K = (\d+)", asked)[1])
    lines = [f"Step {k}: it says {k} → {'Incorrect' if k == 1 else 'Correct'}" for k in range(1, count + 1)]
    text = "\n".join([*lines, "Overall: Incorrect"])
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return JSONResponse({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})


@contextmanager
def judge():
    app = Starlette(routes=[Route("/v1/chat/completions", review_in_arrows, methods=["POST"])])
    with running(app) as (url, _):
        yield url


@pytest.mark.whole
def test_a_judge_that_writes_arrows_is_read_without_a_flag(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["run", "tango", "--model", TINY, "--verifier", "frozen", "--steps", "1", "--operations", "2", "2"]
    words += ["--tasks-per-step", "4", "--group-size", "2", "--evaluation-tasks", "1", "--device", "cpu"]
    words += ["--set", "evaluation.splits=[]", "--set", "evaluation.greedy=false", "--threads", "1", "--out", str(out)]
    with judge() as url:
        assert main([*words, "--verifier-model", f"{url}#arrows"]) == 0
    assert "verdicts: words reads 8 of 8 reviews" in capsys.readouterr().out
    assert rebuild_recipe(str(out)).roles["verifier"].verdict_format == "words"
    with gzip.open(out / "episodes" / "episodes.jsonl.gz", "rt") as stream:
        traces = [trace for line in stream for trace in json.loads(line)["traces"]]
    reviews = [trace["findings"] for trace in traces if trace["role"] == "verifier"]
    assert reviews and all(review["final"] is False for review in reviews)
    assert all(review["steps"][0] is False and all(review["steps"][1:]) for review in reviews)
