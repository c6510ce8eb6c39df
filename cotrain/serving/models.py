"""The models of the server: each role of a run, and each policy that generates.

::

    "solver"             a role: each user message is put into its prompt template, as in training, and its sampling is
                         the default
    "policy/generator"   a policy: messages go through its chat template as they are; the name "generator" alone will
                         do where no role has it

A role whose template has several fields (a verifier's problem and solution) is asked through ``/v1/verify``, or by its
policy. Contents of messages are encoded by the ``Renderer``, so none of them can become a control token.

Everything that touches a tokenizer or a model runs in the engine's thread. A tokenizer is not safe for several threads,
since it has a switch that keeps control tokens out of contents.

Choice i of a request draws its t-th token with the t-th number of the random stream of (seed, i), whatever else is in
the batch. Log-probabilities are the model's own, from one more forward pass: neither temperature nor top-p has been
applied to them.
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
NEEDED_FIELDS = frozenset({"problem", "solution"})  # of the prompt of a role that ``/v1/verify`` can ask
OPTIONAL_FIELDS = frozenset({"count", "nonce", "reference"})  # that it can fill too
REPLACEMENT_CHARACTER = "\ufffd"  # in a decoded text: a character of which not all tokens are there

Alternatives = list[tuple[int, float]]  # the likeliest tokens with their log-probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of ``/v1/models``."""

    name: str
    policy: str
    sampling: Sampling  # where a client says nothing
    role: Role | None  # None: the policy itself
    spec: Policy  # the policy's settings: whether it generates, or scores

    @property
    def prompt_fields(self) -> frozenset[str]:
        return frozenset() if self.role is None else fields_of(self.role.prompt)

    @property
    def can_chat(self) -> bool:
        return self.spec.generates and (self.role is None or len(self.prompt_fields) == 1)

    @property
    def can_verify(self) -> bool:
        has_needed = self.prompt_fields >= NEEDED_FIELDS
        has_unknown = bool(self.prompt_fields - NEEDED_FIELDS - OPTIONAL_FIELDS)
        return (self.spec.generates or self.spec.scores) and has_needed and not has_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to a prompt."""

    prompt_ids: tuple[int, ...]  # [P]
    token_ids: tuple[int, ...]  # [T] up to and with the token that completes a stop string
    text: str
    finish: str
    # Each token's log-probability and its alternatives: [T] of the answer, or [P - 1 + T] with the prompt in front of
    # it, where that was echoed. None: not wanted.
    logprobs: list[tuple[float, Alternatives]] | None


class ServedRun:
    """The models of one run, and an engine in a thread of its own."""

    def __init__(self, trainer: CoTrainer, record: RecordFile | None = None) -> None:
        """``record``: where each answer to a chat is written."""
        self.trainer = trainer
        self._record = record
        self.engine = EngineThread(as_serving_engine(trainer.engine))
        self.models = _served_models(trainer)
        self._numbers = count(1)  # requests come from two threads, and taking the next of these is one operation
        self.n_requests = 0  # so far

    def close(self) -> None:
        """End the engine's thread, and close the record."""
        self.engine.close()
        if self._record is not None:
            self._record.close()

    def find_model(self, name: str) -> ServedModel:
        """The model of this name. Raises BadRequest (404, as OpenAI's API does)."""
        if name not in self.models and f"{POLICY}{name}" in self.models:
            name = f"{POLICY}{name}"
        if name not in self.models:
            message = unknown_message("model", name, self.models)
            raise BadRequest(message, "model", status=404, openai_code="model_not_found", code="E_MODEL_NOT_SERVED")
        return self.models[name]

    def renderer_of(self, model: ServedModel) -> Renderer:
        renderer = self.trainer.policies[model.policy].renderer
        assert isinstance(renderer, Renderer)  # a program has another one, and does not chat
        return renderer

    def next_number(self) -> int:
        """The number of a new request, for its addresses."""
        number = next(self._numbers)
        self.n_requests = number
        return number

    # -- From a request to prompt ids.

    def fill_messages(self, model: ServedModel, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages as a model gets them: a role's system message first, and each user message in the role's
        template; for a policy as they are. Raises BadRequest for a model that does not chat."""
        if not model.can_chat:
            raise BadRequest(_cannot_chat_text(model), "model", code="E_MODEL_CANNOT_CHAT")
        self._check_message_count(model, messages)
        self.check_length(model, [message.content for message in messages], "messages")
        if model.role is None:
            return tuple(messages)

        (field_name,) = model.prompt_fields  # a role that can chat has exactly one
        filled = []
        if model.role.system is not None:
            filled.append(Message("system", model.role.system))
        for message in messages:
            if message.role == "user":
                message = Message("user", fill_template(model.role.prompt, **{field_name: message.content}))
            filled.append(message)
        return tuple(filled)

    def chat_prompt_ids(self, model: ServedModel, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids [P] of filled messages. Raises BadRequest for more text than the context could hold."""
        self.check_length(model, [message.content for message in messages], "messages")
        return self.renderer_of(model).render(messages)

    def raw_prompt_ids(self, model: ServedModel, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        """Prompt ids [P] of a text or of token ids, without any template. In front of a text stands the token of
        beginning that the tokenizer sets, if it sets one."""
        if not model.spec.generates:
            raise BadRequest(_cannot_chat_text(model), "model", code="E_MODEL_CANNOT_CHAT")
        if not isinstance(prompt, str):
            self._check_token_ids(model, prompt)
            return prompt
        self.check_length(model, [prompt], "prompt")
        renderer = self.renderer_of(model)
        bos = renderer.tokenizer.bos_token_id
        ids_of_nothing = renderer.tokenizer("").input_ids  # the token of beginning alone, where one is set
        sets_bos = bos is not None and ids_of_nothing[:1] == [bos]
        ids = tuple(renderer.encode(prompt))
        return (bos, *ids) if sets_bos else ids

    # -- Refusals.

    def check_capacity(self, count: int) -> None:
        """Raises BadRequest (429, which clients take for "later") where too many answers wait already for ``count``
        more."""
        open_count = self.engine.open_requests
        if open_count + count > MAX_OPEN:
            message = f"{open_count} answers are under way and {count} more would be above {MAX_OPEN}; ask again later"
            raise BadRequest(message, status=429, openai_code="rate_limit_exceeded", code="E_SERVER_BUSY")

    def check_length(self, model: ServedModel, texts: Sequence[str], param: str) -> None:
        """Raises BadRequest for texts that are too long for the model's context however they are cut into tokens."""
        renderer = self.trainer.policies[model.policy].renderer
        bytes_of_token = 1  # of a program
        if isinstance(renderer, Renderer):
            bytes_of_token = renderer.longest_token
        check_text_size(texts, self.engine.context(model.policy), bytes_of_token, param, model.policy)

    def _check_message_count(self, model: ServedModel, messages: Sequence[Message]) -> None:
        """Raises BadRequest for more messages than a context could hold: even an empty one takes some tokens of the
        chat template, and as much time as text does."""
        most = self.engine.context(model.policy)
        if len(messages) > most:
            raise BadRequest(
                f"messages has {len(messages)} messages, and at most {most} are taken; shorten the conversation",
                "messages",
                openai_code="context_length_exceeded",
                code="E_TOO_MANY_MESSAGES",
            )

    def _check_token_ids(self, model: ServedModel, token_ids: tuple[int, ...]) -> None:
        """Raises BadRequest for more token ids than the context holds, before any of them is looked at, and for one
        that the vocabulary does not have."""
        context = self.engine.context(model.policy)
        if len(token_ids) > context:
            raise BadRequest(
                f"prompt has {len(token_ids)} tokens, more than the context of {context} tokens of {model.policy!r}; "
                "shorten it",
                "prompt",
                openai_code="context_length_exceeded",
                code="E_REQUEST_TOO_LONG",
            )
        vocabulary = self.renderer_of(model).vocabulary
        for token in (max(token_ids), min(token_ids)):
            if not 0 <= token < vocabulary:
                raise BadRequest(
                    f"token {token} is outside of the vocabulary of {vocabulary}",
                    "prompt",
                    code="E_TOKEN_OUTSIDE_VOCABULARY",
                )

    # -- From prompt ids to answers.

    def make_requests(
        self, model: ServedModel, prompts: Sequence[tuple[int, ...]], params: RequestParams
    ) -> list[Request]:
        """One request for each prompt and choice. Raises BadRequest or ConfigError for what the engine would refuse."""
        self.check_capacity(len(prompts) * params.n)
        number = self.next_number()
        renderer = self.renderer_of(model)
        requests = []
        for place, prompt_ids in enumerate(prompts):
            request = Request(  # of all choices of this prompt, but for seed and call
                policy=model.policy,
                prompt_ids=prompt_ids,
                sampling=self._sampling_for(model, len(prompt_ids), params),
                stop_ids=renderer.stop_ids,
                seed=0,
                address=Address(step=SERVED_STEP, task=number, member=place, role=model.name, call=0),
                decode=renderer.decode,
            )
            self.engine.check(request)
            own_seed = seed_of(self.trainer.recipe.seed, "serve", number, place)
            seed = own_seed if params.seed is None else params.seed
            requests += [_request_for_choice(request, seed, choice) for choice in range(params.n)]
        return requests

    def _sampling_for(self, model: ServedModel, prompt_tokens: int, params: RequestParams) -> Sampling:
        """The client's sampling, and the model's own where it says nothing."""
        own = model.sampling
        context = self.engine.context(model.policy)
        free_tokens = context - prompt_tokens
        needed = params.max_tokens or 1  # one token also where the client wants the echo alone
        if free_tokens < needed:
            raise BadRequest(
                f"the prompt has {prompt_tokens} tokens and max_tokens is {needed}, more than the context of {context} "
                f"of {model.policy!r}; lower max_tokens or shorten the prompt",
                "max_tokens" if free_tokens > 0 else "messages",
                openai_code="context_length_exceeded",
                code="E_REQUEST_TOO_LONG",
            )
        return Sampling(
            max_tokens=params.max_tokens or min(own.max_tokens, free_tokens),
            temperature=own.temperature if params.temperature is None else params.temperature,
            top_p=own.top_p if params.top_p is None else params.top_p,
            stop=(*own.stop, *params.stop),
        )

    async def answer_request(
        self,
        model: ServedModel,
        request: Request,
        params: RequestParams,
        on_text: Callable[[str], object] | None = None,
    ) -> Choice:
        """Sample one request in the engine's thread. ``on_text``: is called with each new piece of the text, the last
        one included."""
        reply = StreamedReply(self.renderer_of(model), params.stop)

        def read_tokens(token_ids: Sequence[int], final: bool = False) -> None:
            new_text = reply.read_new_text(token_ids, final=final)
            if new_text and on_text is not None:
                on_text(new_text)

        completion = None  # the client wants nothing but the echo
        if params.max_tokens != 0:
            if on_text is None:
                completion = await self.engine.sample(request)
            else:
                completion = await self.engine.sample_streaming(request, read_tokens)
        token_ids = () if completion is None else completion.token_ids
        read_tokens(token_ids, final=True)

        if self._record is not None and completion is not None and params.messages:
            self._record.append(self._recorded_row(model, request, params.messages, completion, reply.text))
        logprobs = None
        if params.top is not None:
            logprobs = self._compute_logprobs(model, request.prompt_ids, token_ids, params.echo, params.top)
        return Choice(
            prompt_ids=request.prompt_ids,
            token_ids=token_ids,
            text=reply.text,
            finish="length" if completion is None else completion.finish,
            logprobs=logprobs,
        )

    def _compute_logprobs(
        self, model: ServedModel, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], echo: bool, top: int
    ) -> list[tuple[float, Alternatives]]:
        """The log-probability of each token of an answer, and with ``echo`` of each token of the prompt from its second
        one on. ``top``: number of alternatives. Runs in the engine's thread."""
        handle = self.trainer.policies[model.policy]
        assert isinstance(handle, ModelHandle)  # a policy without a model does not generate here
        first = 1 if echo else len(prompt_ids)
        return handle.top_logprobs((*prompt_ids, *token_ids), first=first, top=top)

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


def _request_for_choice(request: Request, seed: int, choice: int) -> Request:
    """The request for one of several choices of a prompt. ``seed``: that of the prompt."""
    return replace(request, seed=seed_of("serve", seed, choice), address=replace(request.address, call=choice))


def _served_models(trainer: CoTrainer) -> Mapping[str, ServedModel]:
    """Roles first, then policies that generate."""
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
    """Why a model does not chat, and what to ask instead."""
    if not model.spec.generates:
        reason = "scores and does not speak" if model.spec.scores else f"is a {model.spec.kind}"
        advice = "; ask /v1/verify" if model.can_verify else ""
        return f"model {model.name!r} {reason}{advice}"
    fields = ", ".join(sorted(model.prompt_fields)) or "none"
    advice = "ask /v1/verify, or " if model.can_verify else ""
    advice += f"give whole messages to 'policy/{model.policy}'"
    return f"role {model.name!r} has the fields {fields} and not one; {advice}"


# -- The text of an answer as it grows.


class StreamedReply:
    """Reads one reply. ``text`` is what may be shown so far: not the stop string, nor what could still become one, nor
    a character of which not all tokens are there."""

    def __init__(self, renderer: Rendering, stops: Sequence[str]) -> None:
        self._renderer = renderer
        self._stops = stops
        self.text = ""

    def read_new_text(self, token_ids: Sequence[int], *, final: bool = False) -> str:
        """Take all token ids so far, and return what is new of the text."""
        before = len(self.text)
        text = self._renderer.decode(token_ids)
        stop = stop_in(text, self._stops)
        if stop is not None:
            stop_start = stop[0]
            self.text = text[:stop_start]
        else:
            self.text = text if final else _certain_text(text, self._stops)
        return self.text[before:]


def _certain_text(text: str, stops: Sequence[str]) -> str:
    """The text without an incomplete last character, and without an ending with which a stop string may begin."""
    text = text.rstrip(REPLACEMENT_CHARACTER)
    held_back = 0  # characters at the end
    for stop in stops:
        for length in range(1, min(len(stop), len(text) + 1)):
            if text.endswith(stop[:length]):
                held_back = max(held_back, length)
    return text[: len(text) - held_back]
