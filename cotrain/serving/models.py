"""The models of the server: each role of a run, and each policy that speaks.

::

    "solver"             a role: every user message is put into its prompt template, as in training; its own sampling
    "policy/generator"   a policy: messages as they are, in its chat template and nothing else; also "generator", where
                         no role is called so

A role whose template has other fields than one (a verifier's problem and solution) is asked through ``/v1/verify``, or
by its policy. Contents of messages are encoded by the ``Renderer``, so none of them can become a control token.

Everything that touches a tokenizer or a model runs in the engine's thread: tokenizers are not safe for several, and the
switch that keeps control tokens out of contents is a state of theirs.

The t-th token of choice i is drawn with the t-th number of (seed, i), whatever else is in the batch. Log-probabilities
are the model's own, of one more forward pass: neither temperature nor top-p has been applied to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

from cotrain.config.names import POLICY
from cotrain.config.policies import Policy
from cotrain.core.errors import unknown_message
from cotrain.core.seeding import Address, seed_of
from cotrain.core.types import Completion, Sampling
from cotrain.distributed.policy_handles import ModelHandle
from cotrain.formats.openai_requests import BadRequest, RequestParams, check_text_size
from cotrain.inference.contract import Request, as_serving_engine
from cotrain.prompts.chat_template import Message
from cotrain.prompts.decoding import stop_in
from cotrain.prompts.render import Renderer, Rendering
from cotrain.prompts.templates import fields_of, fill_template
from cotrain.rollout.role import Role
from cotrain.serving.batches import EngineThread
from cotrain.storage.record import RecordFile
from cotrain.trainer.trainer import CoTrainer

SERVED_STEP = -(2**40)  # the step in the addresses of what is served
MAX_TOKENS = 256  # limit for a policy that no role plays, where a client gives none
MAX_OPEN = 1024  # answers that wait or run; the engine decodes some hundreds of them at a time
_VERIFIER_FIELDS = frozenset({"problem", "solution"})
_TOLD = frozenset({"count", "nonce", "reference"})  # further fields that /v1/verify can fill

Alternatives = list[tuple[int, float]]  # the likeliest tokens with their log-probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of ``/v1/models``."""

    name: str
    policy: str
    sampling: Sampling  # where a client says nothing
    role: Role | None  # None: the policy itself
    spec: Policy  # what may be asked of it

    @property
    def prompt_fields(self) -> frozenset[str]:
        return frozenset() if self.role is None else fields_of(self.role.prompt)

    @property
    def can_chat(self) -> bool:
        return self.spec.generates and (self.role is None or len(self.prompt_fields) == 1)

    @property
    def can_verify(self) -> bool:
        return (
            self.spec.generates or self.spec.scores
        ) and _VERIFIER_FIELDS <= self.prompt_fields <= _VERIFIER_FIELDS | _TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer."""

    prompt_ids: tuple[int, ...]  # [P]
    token_ids: tuple[int, ...]  # [T] up to and with the token that completes a stop string
    text: str
    finish: str
    logprobs: list[tuple[float, Alternatives]] | None  # [T]; of prompt and answer [P - 1 + T] where a prompt was echoed


class ServedRun:
    """The models of one run, and an engine in a thread of its own."""

    def __init__(self, trainer: CoTrainer, record: RecordFile | None = None) -> None:
        """``record``: where each answer to a chat is written."""
        self.trainer = trainer
        self._record = record
        self.engine = EngineThread(as_serving_engine(trainer.engine))
        self.models = _served_models(trainer)
        self._numbers = count(1)
        self.started = 0  # requests so far

    def close(self) -> None:
        """End the engine's thread, and close the record."""
        self.engine.close()
        if self._record is not None:
            self._record.close()

    def find_model(self, name: str) -> ServedModel:
        """Raises BadRequest (404, as OpenAI's API does)."""
        if name not in self.models and f"{POLICY}{name}" in self.models:
            name = f"{POLICY}{name}"
        if name not in self.models:
            message = unknown_message("model", name, self.models)
            raise BadRequest(message, "model", status=404, openai_code="model_not_found", code="E_MODEL_NOT_SERVED")
        return self.models[name]

    def fill_messages(self, model: ServedModel, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages that a model gets: for a role its system message, and each user message in its template. Raises
        BadRequest for a model that does not talk."""
        if not model.can_chat:
            raise BadRequest(_cannot_chat_text(model), "model", code="E_MODEL_CANNOT_CHAT")
        self._check_count(model, messages)
        self.check_length(model, [message.content for message in messages], "messages")
        if model.role is None:
            return tuple(messages)
        (name,) = model.prompt_fields
        template = model.role.prompt
        system = model.role.system
        filled = []
        if system is not None:
            filled.append(Message("system", system))
        for message in messages:
            if message.role == "user":
                message = Message("user", fill_template(template, **{name: message.content}))
            filled.append(message)
        return tuple(filled)

    def chat_prompt_ids(self, model: ServedModel, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids [P] of filled messages. Raises BadRequest for more text than the context could hold."""
        self.check_length(model, [message.content for message in messages], "messages")
        return self.renderer_of(model).render(messages)

    def _check_count(self, model: ServedModel, messages: Sequence[Message]) -> None:
        """Raises BadRequest for more messages than a context could hold: also an empty one has its frame of tokens,
        which takes as long as text does."""
        most = self.engine.engine.context(model.policy)
        if len(messages) > most:
            raise BadRequest(
                f"messages has {len(messages)} messages, and at most {most} are taken; shorten the conversation",
                "messages",
                openai_code="context_length_exceeded",
                code="E_TOO_MANY_MESSAGES",
            )

    def check_length(self, model: ServedModel, texts: Sequence[str], param: str) -> None:
        """Raises BadRequest for texts that are too long for the model's context however they are cut into tokens."""
        renderer = self.trainer.policies[model.policy].renderer
        longest = renderer.longest_token if isinstance(renderer, Renderer) else 1  # a program's token is a byte
        check_text_size(texts, self.engine.engine.context(model.policy), longest, param, model.policy)

    def _check_token_count(self, model: ServedModel, count: int) -> None:
        """Raises BadRequest for more token ids than the context holds, before anybody looks at one of them."""
        context = self.engine.engine.context(model.policy)
        if count > context:
            raise BadRequest(
                f"prompt has {count} tokens, more than the context of {context} tokens of {model.policy!r}; shorten it",
                "prompt",
                openai_code="context_length_exceeded",
                code="E_REQUEST_TOO_LONG",
            )

    def raw_prompt_ids(self, model: ServedModel, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        """Prompt ids [P] of a text without any template, with the beginning of sequence that the tokenizer sets."""
        if not model.spec.generates:
            raise BadRequest(_cannot_chat_text(model), "model", code="E_MODEL_CANNOT_CHAT")
        renderer = self.renderer_of(model)
        if not isinstance(prompt, str):
            self._check_token_count(model, len(prompt))
            for token in (max(prompt), min(prompt)):
                if not 0 <= token < renderer.vocabulary:
                    raise BadRequest(
                        f"token {token} is outside of the vocabulary of {renderer.vocabulary}",
                        "prompt",
                        code="E_TOKEN_OUTSIDE_VOCABULARY",
                    )
            return prompt
        self.check_length(model, [prompt], "prompt")
        bos = renderer.tokenizer.bos_token_id
        starts_with_bos = bos is not None and renderer.tokenizer("").input_ids[:1] == [bos]
        ids = tuple(renderer.encode(prompt))
        return (bos, *ids) if starts_with_bos else ids

    def renderer_of(self, model: ServedModel) -> Renderer:
        renderer = self.trainer.policies[model.policy].renderer
        assert isinstance(renderer, Renderer)  # others are refused before
        return renderer

    def make_requests(
        self, model: ServedModel, prompts: Sequence[tuple[int, ...]], params: RequestParams
    ) -> list[Request]:
        """One request for each prompt and choice. Raises BadRequest or ConfigError for what the engine would refuse."""
        self.check_capacity(len(prompts) * params.n)
        number = self.next_number()
        renderer = self.renderer_of(model)
        requests = []
        for place, prompt_ids in enumerate(prompts):
            own_seed = seed_of(self.trainer.recipe.seed, "serve", number, place)
            seed = own_seed if params.seed is None else params.seed
            request = Request(
                policy=model.policy,
                prompt_ids=prompt_ids,
                sampling=self._sampling_for(model, len(prompt_ids), params),
                stop_ids=renderer.stop_ids,
                seed=0,
                address=Address(step=SERVED_STEP, task=number, member=place, role=model.name, call=0),
                decode=renderer.decode,
            )
            self.engine.check(request)
            requests += [_choice_request(request, seed, i) for i in range(params.n)]
        return requests

    async def answer_request(
        self, model: ServedModel, request: Request, params: RequestParams, tell: Callable[[str], object] | None = None
    ) -> Choice:
        """Sample one request in the engine's thread; ``tell`` hears the text as it grows, its end included."""
        prompt_ids = request.prompt_ids
        reply = StreamedReply(self.renderer_of(model), params.stop)
        completion = None

        def read(ids: Sequence[int], final: bool = False) -> None:
            new = reply.read_new_text(ids, final=final)
            if new and tell is not None:
                tell(new)

        if params.max_tokens != 0:  # 0: the client wants nothing but the echo
            completion = await (self.engine.watch(request, read) if tell is not None else self.engine.sample(request))
        ids = () if completion is None else completion.token_ids
        read(ids, final=True)
        if self._record is not None and completion is not None and params.messages:
            self._record.append(self._recorded_row(model, request, params.messages, completion, reply.text))
        return Choice(
            prompt_ids=prompt_ids,
            token_ids=ids,
            text=reply.text,
            finish="length" if completion is None else completion.finish,
            logprobs=None
            if params.top is None
            else self._compute_logprobs(model, prompt_ids, ids, params.echo, params.top),
        )

    def _recorded_row(
        self, model: ServedModel, request: Request, messages: Sequence[Message], completion: Completion, text: str
    ) -> dict[str, Any]:
        """A conversation up to one answer, for ``--record``. ``logprobs`` [T] are those of the distribution that each
        token was drawn from."""
        return {
            "messages": [asdict(message) for message in (*messages, Message("assistant", text))],
            "model": model.name,
            "policy": model.policy,
            "step": self.trainer.finished_steps,
            "sampling": asdict(request.sampling),
            "seed": request.seed,
            "prompt_ids": request.prompt_ids,
            "token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "finish": completion.finish,
        }

    def check_capacity(self, count: int) -> None:
        """Raises BadRequest (429, which clients take for "later") where too many answers wait already."""
        if (open_count := self.engine.open_requests) + count > MAX_OPEN:
            message = f"{open_count} answers are under way and {count} more would be above {MAX_OPEN}; ask again later"
            raise BadRequest(message, status=429, openai_code="rate_limit_exceeded", code="E_SERVER_BUSY")

    def next_number(self) -> int:
        """A new number for the addresses of a request."""
        self.started = next(self._numbers)
        return self.started

    def _compute_logprobs(
        self, model: ServedModel, prompt: tuple[int, ...], ids: tuple[int, ...], echo: bool, top: int
    ) -> list[tuple[float, Alternatives]]:
        """The log-probability of each of ``ids``, and with ``echo`` of each token of the prompt from its second one on.
        Runs in the engine's thread."""
        handle = self.trainer.policies[model.policy]
        assert isinstance(handle, ModelHandle)  # those without a model do not speak here
        return handle.top_logprobs((*prompt, *ids), first=1 if echo else len(prompt), top=top)

    def _sampling_for(self, model: ServedModel, prompt: int, params: RequestParams) -> Sampling:
        context = self.engine.context(model.policy)
        own = model.sampling
        free_tokens = context - prompt
        wanted = params.max_tokens
        if free_tokens < (wanted or 1):
            raise BadRequest(
                f"the prompt has {prompt} tokens and max_tokens is {wanted or 1}, more than the context of {context} "
                f"of {model.policy!r}; lower max_tokens or shorten the prompt",
                "max_tokens" if free_tokens > 0 else "messages",
                openai_code="context_length_exceeded",
                code="E_REQUEST_TOO_LONG",
            )
        return Sampling(
            max_tokens=wanted or min(own.max_tokens, free_tokens),
            temperature=own.temperature if params.temperature is None else params.temperature,
            top_p=own.top_p if params.top_p is None else params.top_p,
            stop=(*own.stop, *params.stop),
        )


def _choice_request(request: Request, seed: int, i: int) -> Request:
    return replace(request, seed=seed_of("serve", seed, i), address=replace(request.address, call=i))


def _served_models(trainer: CoTrainer) -> Mapping[str, ServedModel]:
    """Roles first, then policies that speak."""
    recipe = trainer.recipe
    specs = recipe.policies
    models = {
        name: ServedModel(name=name, policy=role.policy, sampling=role.sampling, role=role, spec=specs[role.policy])
        for name, role in recipe.roles.items()
    }
    for policy, spec in specs.items():
        if spec.generates:
            limits = [role.sampling.max_tokens for role in recipe.roles.values() if role.policy == policy]
            sampling = Sampling(max_tokens=max(limits, default=MAX_TOKENS))
            name = f"{POLICY}{policy}"
            models[name] = ServedModel(name=name, policy=policy, sampling=sampling, role=None, spec=spec)
    return models


def _cannot_chat_text(model: ServedModel) -> str:
    if not model.spec.generates:
        what = "scores and does not speak" if model.spec.scores else f"is a {model.spec.kind}"
        return f"model {model.name!r} {what}" + ("; ask /v1/verify" if model.can_verify else "")
    fields = ", ".join(sorted(model.prompt_fields)) or "none"
    other = "ask /v1/verify, or " if model.can_verify else ""
    todo = f"{other}give whole messages to 'policy/{model.policy}'"
    return f"role {model.name!r} has the fields {fields} and not one; {todo}"


_BROKEN = "\ufffd"


class StreamedReply:
    """Reads one reply. ``text`` is what may be shown so far: not the stop string, nor what could still become one, nor
    the rest of a character."""

    def __init__(self, renderer: Rendering, stops: Sequence[str]) -> None:
        self._renderer = renderer
        self._stops = stops
        self.text = ""

    def read_new_text(self, ids: Sequence[int], *, final: bool = False) -> str:
        """Take all ids so far and return what is new of the text."""
        before = len(self.text)
        text = self._renderer.decode(ids)
        stop = stop_in(text, self._stops)
        if stop is not None:
            self.text = text[: stop[0]]
        else:
            self.text = text if final else _certain_text(text, self._stops)
        return self.text[before:]


def _certain_text(text: str, stops: Sequence[str]) -> str:
    """The text without a last character that is not complete, and without an end that a stop string begins with."""
    text = text.rstrip(_BROKEN)
    held_back = 0
    for stop in stops:
        for length in range(1, min(len(stop), len(text) + 1)):
            if text.endswith(stop[:length]):
                held_back = max(held_back, length)
    return text[: len(text) - held_back]
