"""``cotrain chat``: type a problem, see the generator's steps and the verifier's verdict on each; or talk with a model
that no run has and that was not taught to solve.

Control characters of model text are made visible before they reach the terminal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cotrain.algorithms.functional.aggregate import majority, mean
from cotrain.core.errors import ConfigError, TooLong, UserError
from cotrain.core.notes import ANSWER, FAILURE, FINAL, SCORE, STEPS, VERDICTS
from cotrain.core.seeding import Address
from cotrain.core.types import Completion, Grade, Sampling, StepVerdicts, Task, Trace
from cotrain.core.verbosity import escape_terminal as visible
from cotrain.inference.contract import Request
from cotrain.metrics.heldout import trajectories_in
from cotrain.models.load import load_model, load_renderer
from cotrain.pretraining.trainer import read_result
from cotrain.prompts.chat_template import Message
from cotrain.prompts.render import Renderer, generation_config_of
from cotrain.rollout.common_roles import is_terse, taught_roles
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.token_calls import answer_with_tool, find_tool, marks_of
from cotrain.runs import opening
from cotrain.runs.choose_formats import DEFAULT_FORMAT, AnswerFormat
from cotrain.trainer.trainer import CoTrainer

CHAT_STEP = -2  # the step in the addresses of chat episodes
REPLY_TOKENS = 256  # most tokens of one reply in a conversation
EXAMPLE = 0  # index of the validation problem that is shown as an example


class UnknownAnswerGrader:
    """A verifier for problems whose answer nobody knows."""

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=False, reason=None)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


def run_chat(
    directory: Path | str,
    *,
    temperature: float = 0.0,
    read_line: Callable[[str], str] = input,
    once: str | None = None,
    answer_format: AnswerFormat = DEFAULT_FORMAT,
    device: str = "cpu",
    tool: str | None = None,
) -> int:
    """Read problems until the input ends; an empty line takes the example. A model that was taught to solve by
    ``cotrain teach solver`` is asked as it was taught; any other model holds a conversation.

    Args:
        read_line: called with a prompt, returns the line that was typed.
        once: answer this problem and return.
        answer_format: how the solver and the verifier are asked and read. Where it says something, a model solves
            problems, and holds no conversation.
        tool: answers calls between control tokens (``rollout/token_calls.py``); None: as the run has it.
    """
    if once is not None and not once.strip():
        raise ConfigError(
            "cotrain chat: the problem of --once is empty; expected its text in quotes", code="E_ONCE_EMPTY"
        )
    is_model_alone = opening.is_model(directory) and answer_format == DEFAULT_FORMAT
    if is_model_alone and not is_terse(str(directory)) and not _solves_problems(directory):
        conversation = Conversation(directory, temperature, device, tool)
        hold_chat(conversation.reply_lines, f"{directory}. Type something; Ctrl-D to leave.", read_line, once)
        return 0

    trainer = opening.open_trainer(directory, answer_format, device=device, tool=tool, needs_solver=True)
    recipe = trainer.recipe
    roles = {name: role.with_temperature(temperature) for name, role in recipe.roles.items()}
    runner = trainer.make_runner(recipe.seed, roles=roles)
    heading = (
        f"{recipe.name} after step {trainer.finished_steps}. Type a problem; empty line for an "
        "example, Ctrl-D to leave."
    )
    example = recipe.tasks.get("validation", EXAMPLE).prompt
    hold_chat(partial(problem_lines, trainer, runner), heading, read_line, once, example)
    return 0


def _solves_problems(directory: Path | str) -> bool:
    """Whether a model was taught to solve, and nothing else after that."""
    last_training = read_result(directory)  # none where a run exported it
    was_last_taught_to_solve = not last_training or last_training.get("role") == "solver"
    return "solver" in taught_roles(directory) and was_last_taught_to_solve


def hold_chat(
    answer_lines: Callable[[str, int], list[str]],
    heading: str,
    read_line: Callable[[str], str],
    once: str | None,
    example: str = "",
) -> None:
    """Print ``answer_lines(text, turn)`` of each line that is typed; ``once``: of this text alone."""
    if once is not None:
        print("\n".join(answer_lines(_without_surrogates(once.strip()), 0)))
        return
    print(heading)
    turn = 0
    while True:
        try:
            text = _without_surrogates(read_line("\n> ").strip())
        except (EOFError, KeyboardInterrupt):
            print()
            return

        if not text:
            text = example
            print(visible(text))
        lines = []
        try:
            if text:
                lines = answer_lines(text, turn)
        except UserError as error:  # such as a problem that is too long; the next one may do
            lines = [visible(f"({error})")]
        print("\n".join(lines), flush=True)
        turn += 1


def _without_surrogates(text: str) -> str:
    """Return the text that was typed, with U+FFFD for bytes that are no UTF-8, which Python reads as surrogates that no
    tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Conversation:
    """A conversation with a model in its own chat template, without a role of a run."""

    def __init__(self, model: Path | str, temperature: float, device: str, tool: str | None = None) -> None:
        sampling = Sampling(max_tokens=REPLY_TOKENS, temperature=temperature)
        self.role = Role(policy="model", prompt="{text}", sampling=sampling)
        if tool is not None:
            self.role = replace(self.role, tool=find_tool(tool))
            marks_of(load_renderer(model), "chat")  # refuses a model that cannot call it, before its weights are read
        self.model, tokenizer = load_model(model)
        nn.Module.to(self.model, device)
        self.renderer = Renderer(tokenizer, generation_config_of(self.model))
        self.temperature = temperature
        self.messages: list[Message] = []

    def reply_lines(self, text: str, turn: int) -> list[str]:
        """Return the model's reply to ``text``, line by line. Raises TooLong where the conversation fills the context;
        the message is then left out of it."""
        messages = [*self.messages, Message("user", text)]
        prompt = self.renderer.render(messages)
        context = getattr(self.model.config, "max_position_embeddings", None)
        if context is None:  # a model without a limit
            context = len(prompt) + REPLY_TOKENS
        if len(prompt) >= context:
            raise TooLong(
                f"the conversation has {len(prompt)} tokens, and the context of the model {context}; start anew"
            )
        request = Request(
            policy="model",
            prompt_ids=prompt,
            sampling=replace(self.role.sampling, max_tokens=min(REPLY_TOKENS, context - len(prompt))),
            stop_ids=self.renderer.stop_ids,
            seed=turn,
            address=Address(step=CHAT_STEP, task=turn, member=0, role="chat", call=0),
        )
        reply = self.renderer.decode(asyncio.run(self._answer(request)).token_ids)
        self.messages = [*messages, Message("assistant", reply)]
        return [visible(line) for line in reply.splitlines() or [""]]

    async def _answer(self, request: Request) -> Completion:
        if self.role.tool is None:
            return await self._generate(request)
        return await answer_with_tool(self._generate, request, self.role, self.renderer, lambda address: request.seed)

    async def _generate(self, request: Request) -> Completion:
        ids = torch.tensor([request.prompt_ids], device=self.model.device)
        sampling: dict[str, Any] = {"do_sample": self.temperature > 0, "temperature": self.temperature or None}
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(request.seed)
            token_ids = self.model.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.sampling.max_tokens,
                eos_token_id=list(request.stop_ids),
                pad_token_id=request.stop_ids[0],
                **sampling,
            )

        said = tuple(token_ids[0, len(request.prompt_ids) :].tolist())
        finish = "stop" if said and said[-1] in request.stop_ids else "length"
        return Completion(token_ids=said, logprobs=(0.0,) * len(said), finish=finish, policy="model", version=0)


def problem_lines(trainer: CoTrainer, runner: RolloutRunner, problem: str, turn: int) -> list[str]:
    """The solution of one problem with the verifier's verdict on each step, as lines. Raises UserError where there is
    no solution, as of a problem that is too long."""
    task = Task(
        id=f"chat/{turn}", prompt=problem, gold=None, solution=None, difficulty=0.0, grader=UnknownAnswerGrader()
    )
    evaluation = trainer.recipe.evaluation
    (episode,) = runner.collect(evaluation.protocol, [task], step=CHAT_STEP - turn, group_size=1)
    trajectories = trajectories_in(episode)
    solutions = [trace for trace in trajectories if trace.role == "solver"]
    if not solutions:
        why = runner.set_aside.get(task.id) or episode.failure or "the solver was not asked"
        raise UserError(f"no answer: {visible(why)}", code="E_NO_ANSWER")
    solution = solutions[0]
    reviews = [trace for trace in trajectories if trace.parent == str(solution.address)]
    steps = STEPS.of(solution)
    if not steps:
        return [visible(solution.text), f"(not in the stepwise format: {FAILURE.of(solution)})"]

    lines = []
    marks = _step_marks(reviews, len(steps))
    for number, (mark, (_, _, text)) in enumerate(zip(marks, steps, strict=True), start=1):
        lines.append(f"  {mark} {number}. {visible(text.strip())}")
    lines.append(f"    answer: {visible(str(ANSWER.of(solution)))}")
    if reviews:
        lines.append(f"    verifier: {_verdict_text(reviews)}")
    return lines


def _step_marks(reviews: Sequence[Trace], n_steps: int) -> list[str]:
    """The sign in front of each step: right, wrong, undecided, or a blank where no review has verdicts on steps."""
    all_verdicts = [VERDICTS.of(review) for review in reviews]
    step_verdicts = [verdicts for verdicts in all_verdicts if verdicts]
    if not step_verdicts:
        return [" "] * n_steps
    marks = {1.0: "✓", 0.0: "✗", None: "?"}
    return [marks[majority([verdicts[index] for verdicts in step_verdicts])] for index in range(n_steps)]


def _verdict_text(reviews: Sequence[Trace]) -> str:
    """The verdict of the reviews of one solution together."""
    all_finals = [FINAL.of(review) for review in reviews]
    finals = [final for final in all_finals if final is not None]
    if not finals:
        return f"no verdict ({FAILURE.of(reviews[0])})"
    verdict = {1.0: "CORRECT", 0.0: "INCORRECT", None: "undecided"}[majority(finals)]
    text = verdict
    if len(reviews) > 1:
        text += f" ({int(sum(finals))} of {len(reviews)} reviews say CORRECT)"
    all_scores = [SCORE.of(review) for review in reviews]
    score = mean([score for score in all_scores if score is not None])
    if score is not None:
        text += f", probability of CORRECT {score:.2f}"
    return text
