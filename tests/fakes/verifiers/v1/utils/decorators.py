from verifiers.v1 import invoke_all

__all__ = ["invoke_all"]
