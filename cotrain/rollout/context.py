"""The values that all episodes of one batch share: the engine, the roles and the seed; and how a role is asked for its
answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.seeding import Address, seed_of
from cotrain.core.types import Completion
from cotrain.inference.contract import Engine, Request, SpeakerError
from cotrain.prompts.render import Rendering
from cotrain.rollout.role import Role

PromptFields = dict[str, dict[str, str]]  # address of a conversation → field of its role's prompt → what it showed


class EngineError(CotrainError, RuntimeError):
    """The engine raised while it answered a request."""

    code = "E_ENGINE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """The values that all episodes of one batch share."""

    engine: Engine
    renderers: Mapping[str, Rendering]  # policy name → its renderer
    roles: Mapping[str, Role]
    seed: int
    split: str
    step: int
    fields_by_address: PromptFields = field(default_factory=dict)  # what conversations in default groups showed

    async def sample_answer(
        self,
        address: Address,
        role: Role,
        prompt_ids: tuple[int, ...],
        fields: Mapping[str, Any],
        *,
        keep_cache: bool,
        continues: Address | None,
    ) -> Completion:
        """Sample the completion of a role's policy to a prompt. ``keep_cache``, ``continues``: ``keep`` and
        ``continues`` of ``Request``."""
        renderer = self.renderers[role.policy]
        request = Request(
            policy=role.policy,
            prompt_ids=prompt_ids,
            sampling=role.sampling,
            stop_ids=renderer.stop_ids,
            seed=self.seed_at(address),
            address=address,
            fields=fields,
            decode=renderer.decode,
            keep=keep_cache,
            continues=continues,
        )
        if role.tool is None:
            return await self.ask_engine(request)
        from cotrain.rollout.token_calls import answer_with_tool

        return await answer_with_tool(self.ask_engine, request, role, renderer, self.seed_at)

    def seed_at(self, address: Address) -> int:
        """The seed of the request at an address."""
        return seed_of(self.seed, self.split, str(address))

    async def ask_engine(self, request: Request) -> Completion:
        """Wait for the answer of the engine. Raises EngineError where it fails otherwise than cotrain's own errors do,
        and what a program that speaks has raised."""
        try:
            return await self.engine.sample(request)
        except CotrainError:
            raise
        except SpeakerError as error:
            raise error.__cause__ or error from None  # the error of the program itself
        except Exception as error:
            raise EngineError(
                f"{type(self.engine).__name__} failed at {request.address}: {error}", code="E_ENGINE_FAILED"
            ) from error
