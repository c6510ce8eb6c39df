"""The part of ``verifiers`` 0.4 that is used, for tests on machines without it; those with it run the tests twice."""

import asyncio
import json
from types import SimpleNamespace


class Given:
    """Fields with defaults, which a call may set."""

    def __init__(self, **given):
        self.__dict__.update(given)

    def __class_getitem__(cls, item):
        return cls


class TaskData(Given):
    idx, prompt, system_prompt = None, None, None

    @property
    def prompt_text(self):
        return self.prompt or ""

    def model_dump_json(self):
        return json.dumps(self.__dict__)


class Task:
    NEEDS_CONTAINER, key, hash = False, "k", "h"

    def __init__(self, data, config=None):
        self.data, self.config = data, config

    def __class_getitem__(cls, item):
        return cls

    @classmethod
    def toolsets(cls, config):
        return []

    def plugged_judges(self):
        return []

    def hooks(self, kind):
        return [
            getattr(self, name) for name in dir(type(self)) if getattr(getattr(type(self), name), "kind", "") == kind
        ]

    async def setup(self, trace, runtime): ...

    async def finalize(self, trace, runtime): ...

    async def score(self, trace):
        for method in self.hooks("reward"):
            trace.rewards[method.__name__] = None
            trace.record_reward(method.__name__, await method(trace), method.weight)


class TasksetConfig(Given):
    id, task = "", None


class Taskset:
    CONFIG = TasksetConfig

    def __init__(self, config):
        self.config = config

    def __class_getitem__(cls, item):
        return type(cls.__name__, (cls,), {"CONFIG": item[1]})

    def __iter__(self):
        return iter(self.load())


class AgentConfig(Given):
    max_turns = None


class EnvConfig(Given):
    id = ""


class Env:
    def __init__(self, config):
        from verifiers.v1.utils.loaders import load_taskset

        self.config, self.taskset = config, load_taskset(config.taskset)

    def __class_getitem__(cls, item):
        return type(cls.__name__, (cls,), {"CONFIG": item})

    async def setup(self, agents): ...

    async def finalize(self, task, episode): ...


class Agents:
    def __init__(self, config, make):
        from verifiers.v1.configs.agent import agent_config_fields

        self.__dict__ |= {name: make(name, spec) for name, spec in agent_config_fields(config).items()}


class Trace(SimpleNamespace):
    ok, is_completed, stop_condition = False, False, None

    def __init__(self, **given):
        super().__init__(nodes=[], rewards={}, metrics={}, **given)

    @property
    def reward(self):
        return sum(score * weight for score, weight in self.rewards.values())

    @property
    def assistant_messages(self):
        return [n.message for n in self.nodes if n.sampled]

    @property
    def last_reply(self):
        return self.assistant_messages[-1].content.strip()

    @property
    def num_turns(self):
        return len(self.assistant_messages)

    def record_reward(self, name, value, weight=1.0):
        self.rewards[name] = (value, weight)

    def stop(self, condition):
        self.is_completed, self.stop_condition = True, self.stop_condition or condition


class Episode(SimpleNamespace):
    def __init__(self, **given):
        super().__init__(traces=[], **given)


class MessageNode(SimpleNamespace):
    def __init__(self, sampled=False, **given):
        super().__init__(sampled=sampled, **given)


def reward(weight=1.0):
    def mark(method):
        method.kind, method.weight = "reward", weight
        return method

    return mark


def stop(method):
    method.kind = "stop"
    return method


async def invoke_all(methods, available):
    return await asyncio.gather(*(method(available["trace"]) for method in methods))


TraceTask = AgentInfo = UserMessage = AssistantMessage = SimpleNamespace
