"""What the tests of engines and protocols share: tiny random models, requests, a renderer by characters, latency."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from cotrain.algorithms.contract import ContextTokens
from cotrain.config.policies import Policy, program
from cotrain.config.recipe import Recipe
from cotrain.config.remote import remote
from cotrain.core.seeding import Address, rng_of
from cotrain.core.types import Completion, Grade, NoGrader, Sampling, StepVerdicts, Task
from cotrain.data.word_problems.problem import Fact, assemble_problem
from cotrain.data.word_problems.source import study_problems
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.policy_handles import Program, ProgramHandle, RoutingEngine, route_policies
from cotrain.inference.contract import Engine, Request
from cotrain.inference.local import LocalEngine
from cotrain.learner.batching import Sequences
from cotrain.learner.logprobs import Scorer
from cotrain.metrics.metric import BOTH, HELD_OUT, STEP, Metric, _mark_pattern
from cotrain.metrics.table import TABLE
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.prompts.chat_template import Message
from cotrain.rollout.event_loop import EngineEventLoop, engine_paused, gather
from cotrain.runs import opening
from cotrain.trainer.failures import Interrupted
from cotrain.trainer.policy_store import PolicyStore

CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}  # both with two query heads a key head; qwen3 norms q and k
VOCABULARY = 96
EASY = replace(study_problems((2, 2)), max_value=20)  # problems that the tiny model was made for
TINY = str(Path(__file__).parent / "assets" / "tiny")  # speaks every role's format (tests/make_tiny.py)
FRUIT = assemble_problem(
    (
        Fact(target="apples", kind="given", right=12),
        Fact(target="pears", kind="plus", left="apples", right=4),
        Fact(target="plums", kind="difference", left="pears", right="apples"),
        Fact(target="pies", kind="minus", left="apples", right=2),
    ),
    "plums",
    family="plain",
)
CONTEXT = 128


class Talks:
    """Prompts to which there is no right answer."""

    name = "talks"

    def get(self, split: str, index: int) -> Task:
        return Task(
            id=f"talks/{split}/{index}",
            prompt=f"Say something of the number {index}.",
            gold=None,
            solution=None,
            difficulty=0.0,
            grader=NoGrader(reason="a talk has no answer"),
        )

    def size(self, split: str) -> int:
        return 4

    def describe(self) -> dict[str, object]:
        return {"kind": self.name, "settings": {}}


def with_silent_verifier(model: str) -> Recipe:
    """The recipe of a model whose verifier is a server's that is gone."""
    recipe = opening.recipe_of(model, judging=True)
    gone = remote("http://127.0.0.1:9/v1", "judge", deadline=0.2)
    roles = {**recipe.roles, "verifier": replace(recipe.roles["verifier"], policy="judge")}
    return replace(recipe, policies={**recipe.policies, "judge": gone}, roles=roles)


def tiny_model(kind: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A random causal LM of two layers, with weights large enough that its distributions are far from uniform."""
    config = CONFIGS[kind](
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 4
    return model.eval()


def mixed_requests(policies: Sequence[str], count: int, seed: int = 0) -> list[Request]:
    """Requests of many lengths and settings; every second one has the prompt of the one before it."""
    rng = random.Random(seed)
    requests: list[Request] = []
    for i in range(count):
        prompt = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 30)))
        requests.append(
            request(
                policy=policies[i // 2 % len(policies)],
                prompt_ids=requests[-1].prompt_ids if i % 2 else prompt,
                sampling=Sampling(
                    max_tokens=rng.randrange(1, 40),
                    temperature=rng.choice([0.0, 0.7, 1.0, 1.0]),
                    top_p=rng.choice([0.9, 1.0, 1.0]),
                ),
                stop_ids=(5, 6),
                task=i,
            )
        )
    return requests


def request(
    *,
    policy: str = "a",
    prompt_ids: tuple[int, ...] = (1, 2, 3),
    sampling: Sampling | None = None,
    stop_ids: tuple[int, ...] = (),
    task: int = 0,
) -> Request:
    return Request(
        policy=policy,
        prompt_ids=prompt_ids,
        sampling=sampling or Sampling(max_tokens=8),
        stop_ids=stop_ids,
        seed=rng_of("request", task).getrandbits(63),
        address=Address(step=0, task=task, member=0, role="solver", call=0),
    )


def answers(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Ask everything at once and wait for all answers."""
    return EngineEventLoop().run_to_end(gather([engine.sample(r) for r in requests]), engine.advance)


class RandomLatency:
    """Any engine, with a random wait of up to 3 ms before and after each answer."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self._rng = random.Random(seed)
        self.advance, self.publish, self.counts = engine.advance, engine.publish, engine.counts

    async def sample(self, request: Request) -> Completion:
        await self._wait()
        completion = await self.engine.sample(request)
        await self._wait()
        return completion

    async def _wait(self) -> None:
        async with engine_paused():
            await asyncio.sleep(self._rng.random() * 0.003)


class CountedEngine:
    """Any engine, which counts its advances, and stops the run at one of them."""

    def __init__(self, engine: Engine, stop_at: int | None = None) -> None:
        self.engine, self.count, self.stop_at = engine, 0, stop_at
        self.sample, self.publish, self.counts = engine.sample, engine.publish, engine.counts

    def advance(self) -> bool:
        self.count += 1
        if self.count == self.stop_at:
            raise Interrupted(signal.SIGINT)
        return self.engine.advance()


class Heard:
    """An observer of a run that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rows: list[Mapping[str, object]] = []

    def message(self, text: str) -> None:
        self.lines.append(text)

    def update(self, row: Mapping[str, object]) -> None:
        self.rows.append(row)


class StopAfter:
    """An observer that asks the run to stop after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, object]) -> None:
        if row.get("step") == self.step and "kind" not in row:
            signal.raise_signal(signal.SIGINT)


class LeaveAfter:
    """An observer that ends the run without a word after so many rows, or with another error."""

    def __init__(self, rows: int, error: type[BaseException] | BaseException = KeyboardInterrupt) -> None:
        self.left, self.error = rows, error

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, object]) -> None:
        self.left -= 1
        if not self.left:
            raise self.error


def kill_after_rows(command: Sequence[str], folder: Path, rows: int, *, then: float = 0.0) -> bool:
    """Begin a command that makes a run in ``folder``, and kill it once its metrics have so many rows, and ``then`` so
    many seconds later. False where it had ended before, as it should."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < rows):
        time.sleep(0.002)
    time.sleep(then)
    process.kill()
    ended = process.wait()
    assert ended in (0, -signal.SIGKILL), ended
    return ended != 0


class AnyOrder:
    """Any engine, given what waits in a random order: some requests, all of them until they are answered, then some
    others. What plays at once is answered in orders that neither addresses nor lengths would give."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self._rng = random.Random(seed)
        self._held: list[asyncio.Future[None]] = []
        self.publish, self.counts = engine.publish, engine.counts

    async def sample(self, request: Request) -> Completion:
        turn = asyncio.get_running_loop().create_future()
        self._held.append(turn)
        await turn
        return await self.engine.sample(request)

    def advance(self) -> bool:
        if self.engine.advance():
            return True
        self._held = [turn for turn in self._held if not turn.done()]
        chosen = self._rng.sample(self._held, (len(self._held) + 1) // 2)
        for turn in chosen:
            turn.set_result(None)
        return bool(chosen)


def cast_of(policies: Mapping[str, Policy], *, seed: int) -> PolicyStore:
    """The policies alone, as a run holds them."""
    return PolicyStore(LocalBackend().open(policies, seed=seed))


def spoken(said: Mapping[str, Program], engine: Engine | None = None) -> RoutingEngine:
    """An engine in which these functions speak, beside those whom ``engine`` answers for."""
    handles = {name: ProgramHandle(name, program(speak), ByteRenderer(), speak) for name, speak in said.items()}
    return route_policies(handles, engine or LocalEngine({}))


class CharRenderer:
    """One token a character, as ids 1 … 95 for the printable ones of ASCII; 0 stops. No chat template."""

    stop_ids = (0,)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.encode_pieces(self.prompt_pieces(messages))

    def prompt_pieces(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        return [(message.content, "content") for message in messages]

    def encode_pieces(self, pieces: Sequence[tuple[str, str]], before: str = "") -> tuple[int, ...]:
        return tuple(i for text, _ in pieces for i in self.encode(text))

    def token_text(self, token: int) -> str:
        return self.decode([token])

    def encode(self, text: str, before: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(ord(char) - 31 for char in text)

    def encode_reply(self, text: str, prompt: Sequence[int]) -> tuple[int, ...]:
        return (*self.encode(text), *self.stop_ids[:1])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i + 31) for i in ids if i)

    def offsets(self, ids: Sequence[int]) -> list[int]:
        return [len(self.decode(ids[: t + 1])) for t in range(len(ids))]


@dataclass(frozen=True, slots=True)
class FirstLetter:
    """Judges a text right when it begins with the gold answer."""

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=text.startswith(task.gold or ""))

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


def letter_tasks(count: int) -> list[Task]:
    return [
        Task(
            id=f"letters/train/{i}",
            prompt=chr(65 + i % 26) * (1 + i % 5),
            gold=chr(65 + i % 26),
            solution=None,
            difficulty=0,
            grader=FirstLetter(),
        )
        for i in range(count)
    ]


class Saying:
    """An engine that says what it is told: the texts of each role, in the order of its calls."""

    def __init__(self, **texts: Sequence[str]) -> None:
        self.texts = texts
        self.asked: list[tuple[str, str]] = []  # role and prompt

    async def sample(self, request: Request) -> Completion:
        role, call = request.address.role, request.address.call
        self.asked.append((role, CharRenderer().decode(request.prompt_ids)))
        ids = (*CharRenderer().encode(self.texts[role][call]), 0)
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish="stop", policy="a", version=0)

    def advance(self) -> bool:
        return False


def sequence_scores(
    model: nn.Module,
    sequences: Sequences,
    *,
    head: str = "lm",
    micro_tokens: int = 16384,
    temperature: float = 1.0,
    autocast: bool = False,
    activate: Callable[[], object] | None = None,
    given: Sequence[ContextTokens] = (),
) -> list[torch.Tensor]:
    """Log-probabilities (or values) of sampled tokens under a model that nobody trains; see ``Scorer.logprobs``.

    ``activate`` is called before the first pass, to select an adapter on a shared base, or none.
    """
    if activate is not None:
        activate()
    scorer = Scorer(model, head=head, micro_tokens=micro_tokens, autocast=autocast)
    return scorer.logprobs(sequences, temperature=temperature, context_tokens=given)


@cache
def _key_pattern(metric: Metric) -> re.Pattern[str]:
    """Matches keys of ``metrics.jsonl``."""
    step, owner = _mark_pattern(metric.key).pattern, metric.key[: len(metric.key) - len(metric.name)]
    held_out = f"eval/{_mark_pattern(owner).pattern}(?:[^/]+/)?{metric.name_pattern.pattern}"
    return re.compile({STEP: step, HELD_OUT: held_out, BOTH: f"{step}|{held_out}"}[metric.at])


def is_documented(key: str) -> bool:
    """Has this key of ``metrics.jsonl`` a line in the table?"""
    return any(_key_pattern(metric).fullmatch(key) for metric in TABLE)


def active_run(directory, trainer):
    """A run in this directory, as ``start_run`` makes it before it trains."""
    from cotrain.runs.log import LoggingObserver, SilentObserver
    from cotrain.runs.manifest import GrowingHashes
    from cotrain.runs.out_of_room import DiskRetry
    from cotrain.runs.run import ActiveRun

    observer = LoggingObserver(SilentObserver(), directory.path)
    return ActiveRun(
        directory=directory,
        trainer=trainer,
        checkpoint_every=1,
        keep_every=0,
        observer=observer,
        retry_when_full=DiskRetry(lambda: 0, observer.message),
        resumed_from=None,
        file_hashes=GrowingHashes(directory),
    )
