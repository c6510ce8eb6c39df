from abc import ABC, abstractmethod
from typing import Generic, TypeVar

ActT, ObsT, StateT = TypeVar("ActT"), TypeVar("ObsT"), TypeVar("StateT")


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    SUPPORTS_CONCURRENT_SESSIONS = False

    @abstractmethod
    def reset(self, seed=None, episode_id=None, **kwargs): ...

    async def reset_async(self, seed=None, episode_id=None, **kwargs):
        return self.reset(seed=seed, episode_id=episode_id, **kwargs)

    @abstractmethod
    def step(self, action, timeout_s=None, **kwargs): ...

    async def step_async(self, action, timeout_s=None, **kwargs):
        return self.step(action, timeout_s=timeout_s, **kwargs)

    @property
    @abstractmethod
    def state(self): ...

    def close(self): ...
