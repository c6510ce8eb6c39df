"""Grading by the rewards of a ``verifiers`` taskset: loaded by ``grade_worker.py``, for ``taskset.py``.

The taskset is loaded a second time, in the process that grades. In the place of a gold answer the worker is sent the
place of a task in the taskset. The rewards read an answer as a finished conversation of prompt and answer.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.envs.verifiers.taskset import read_taskset
from cotrain.grading.grade_worker import Judging, Verdict


def load_taskset_judging(argument: str) -> Judging:
    """``argument``: JSON of taskset, config, limit and right_at. Raises ImportError where the taskset cannot be
    loaded."""
    settings = json.loads(argument)
    try:
        tasks = read_taskset(settings["taskset"], settings["config"], settings["limit"])
    except ConfigError as error:
        raise ImportError(str(error)) from error

    def judge(gold: str, answer: str) -> Verdict:
        try:
            task = tasks[int(gold)]
            trace = trace_of(task, answer)
            asyncio.run(task.score(trace))
            if not trace.rewards or None in trace.rewards.values():
                return None, "no reward"
            reward = float(trace.reward)
        except MemoryError:
            return None, "out of memory"
        except BaseException:  # noqa: BLE001  the package's own code, and no verdict on the answer
            return None, "reward failed"
        if not math.isfinite(reward):
            return None, "reward not finite"
        return reward >= settings["right_at"] - 1e-9, None

    return Judging(judge=judge)


def trace_of(task: Any, answer: str) -> Any:
    """The conversation that a taskset's rewards read."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
    )
    trace.nodes.append(vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text)))
    trace.nodes.append(vf.MessageNode(parent=0, message=vf.AssistantMessage(content=answer), sampled=True))
    return trace
