"""``remote(url, model)``: a policy that another server runs, in any role that is not trained.

    policies = {"verifier": remote("http://127.0.0.1:8000/v1", "judge", key_variable="JUDGE_KEY"), …}

It can play a solver, a verifier or an opponent. Its weights are not here, so it cannot be trained and has no
log-probabilities of given tokens.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from cotrain.config.policy_base import Policy
from cotrain.core.errors import ConfigError

if TYPE_CHECKING:
    from cotrain.distributed import policy_handles
    from cotrain.distributed.local import PolicyFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote(Policy):
    """A model behind an OpenAI-compatible server. ``model`` is its name there."""

    kind: ClassVar[str] = "remote"
    head: ClassVar[str] = ""
    generates: ClassVar[bool] = False
    outside: ClassVar[bool] = True

    url: str  # up to and with "/v1"
    key_variable: str | None = None  # environment variable that holds the API key; None: the server wants none
    tokenizer: str | None = None  # directory of the server's tokenizer: ids are sent to /completions; None: chat
    concurrency: int = 32  # most requests at a time
    timeout: float = 60.0  # seconds that one try may take
    deadline: float = 300.0  # seconds that one answer may take, with all tries
    input_price: float = 0.0  # price of a million prompt tokens; costs are in the same money
    output_price: float = 0.0  # price of a million tokens of answers

    def __post_init__(self) -> None:
        where = f"remote policy {self.model!r}"
        parts = urlsplit(self.url)
        if not self.model:
            raise ConfigError(
                f"remote policy on {self.url!r}: expected the name of one of its models behind '#', "
                f"as in {self.url}#judge",
                code="E_REMOTE_MODEL_UNNAMED",
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{where}: url is {self.url!r}; expected http://HOST:PORT/v1 or https://…", code="E_REMOTE_URL"
            )
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                f"{where}: the url holds a user, a password or a query; name a key by key_variable instead",
                code="E_REMOTE_URL_SECRET",
            )
        if self.concurrency < 1 or not 0.0 < self.timeout < math.inf or not 0.0 < self.deadline < math.inf:
            raise ConfigError(
                f"{where}: concurrency {self.concurrency}, timeout {self.timeout}, deadline {self.deadline}; expected "
                "at least 1, and seconds above 0",
                code="E_REMOTE_LIMITS",
            )
        if min(self.input_price, self.output_price) < 0.0:
            raise ConfigError(
                f"{where}: prices {self.input_price} and {self.output_price}; expected 0 or more",
                code="E_REMOTE_PRICES",
            )

    @property
    def send_ids(self) -> bool:
        """Whether token ids are sent to /completions instead of messages to /chat/completions."""
        return self.tokenizer is not None

    def build(self, name: str, factory: PolicyFactory) -> policy_handles.PolicyHandle:
        from cotrain.distributed.openai_policy import MessagesRenderer, RemoteHandle
        from cotrain.models.load import load_renderer

        key = None if self.key_variable is None else os.environ.get(self.key_variable)
        if self.key_variable is not None and not key:
            raise ConfigError(
                f"policy {name!r}: the environment variable {self.key_variable!r} is not set; set it to the API key "
                f"of {self.url}",
                code="E_API_KEY_MISSING",
            )
        renderer = MessagesRenderer() if self.tokenizer is None else load_renderer(self.tokenizer)
        return RemoteHandle(name, self, renderer, key)


def remote(
    url: str,
    model: str,
    *,
    key_variable: str | None = None,
    tokenizer: str | None = None,
    concurrency: int = 32,
    timeout: float = 60.0,
    deadline: float = 300.0,
    input_price: float = 0.0,
    output_price: float = 0.0,
) -> Policy:
    """A model behind an OpenAI-compatible server; see ``Remote`` for the fields."""
    return Remote(
        url=url,
        model=model,
        key_variable=key_variable,
        tokenizer=tokenizer,
        concurrency=concurrency,
        timeout=timeout,
        deadline=deadline,
        input_price=input_price,
        output_price=output_price,
    )
