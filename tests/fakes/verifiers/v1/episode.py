from types import SimpleNamespace as EnvInfo

__all__ = ["EnvInfo"]
