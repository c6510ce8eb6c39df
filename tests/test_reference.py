"""The programs in ``reference/`` compute what the framework does: given the answers that a run of ours sampled, their
advantages agree to 1e-6 and the weights after their updates to 1e-5. They import nothing of the package."""

import ast
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of as sample_of_trace
from cotrain.config.registry import find_recipe
from cotrain.trainer.trainer import CoTrainer

FOLDER = Path(__file__).resolve().parents[1] / "reference"
NAMES = ("grpo", "tango", "prime")
SIZE = {"tasks_per_step": 4, "group_size": 4, "evaluation_tasks": 1}
ALPHA = 0.3  # large enough that steps are seen in the weights


def program(name):
    spec = importlib.util.spec_from_file_location(f"reference_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(program("grpo").BASE)


def base_model():
    return AutoModelForCausalLM.from_pretrained(program("grpo").BASE, dtype=torch.float32)


def sample_of(module, trace, text=None):
    """A rollout of ours as the program keeps it."""
    logprobs = torch.tensor(trace.logprobs)
    return module.Sample(list(trace.prompt_ids), list(trace.token_ids), logprobs, trace.text if text is None else text)


def groups_of(episodes, role):
    """The traces of a role, by the group that they are compared in."""
    groups = {}
    for episode in episodes:
        for trace in episode.traces:
            if trace.role == role:
                groups.setdefault(trace.group, []).append(trace)
    return groups


def traces_of(episodes, role):
    return [trace for episode in episodes for trace in episode.traces if trace.role == role]


def value(trace, name):
    return next(reward.value for reward in trace.rewards if reward.name == name)


def our_advantages(objective, traces, scores=None):
    """The advantages that an objective of ours gives these traces before its first update, by address."""
    samples = [sample_of_trace(trace, scores=None if scores is None else scores[i]) for i, trace in enumerate(traces)]
    credit, _ = objective.algorithm.credit(Batch(samples=tuple(samples), updates=0, planned=10), {})
    return {sample.key: sample.advantages for sample in credit.samples}


def assert_same_advantages(mine, ours, traces):
    """Those of a group that was left out are 0."""
    for trace, advantage in zip(traces, mine, strict=True):
        expected = ours.get(str(trace.address), torch.zeros(len(trace.token_ids)))
        torch.testing.assert_close(advantage, expected, atol=1e-6, rtol=0)


def assert_same_weights(model, trainer, policy):
    ours = trainer.policies.tensors()[policy]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), ours[f"model.{name}"], atol=1e-5, rtol=0, msg=name)


def test_a_program_imports_nothing_of_the_package():
    for name in NAMES:
        tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        modules = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {module.partition(".")[0] for module in modules} <= {*sys.stdlib_module_names, "torch", "transformers"}


def test_grpo_makes_the_update_of_ours(tokenizer):
    module = program("grpo")
    trainer = CoTrainer(find_recipe("grpo")(steps=2, seed=1, **SIZE))
    step = trainer.step()
    groups = groups_of(step.episodes, "solver")
    rewards = torch.tensor([[value(t, "outcome") for t in traces] for traces in groups.values()], dtype=torch.float64)
    answers = [sample_of(module, trace) for traces in groups.values() for trace in traces]
    advantages = module.group_advantages(rewards).flatten().float()
    assert advantages.any()
    on_tokens = [a.expand(len(one.token_ids)) for a, one in zip(advantages, answers, strict=True)]
    traces = [trace for traces in groups.values() for trace in traces]
    assert_same_advantages(on_tokens, our_advantages(trainer.recipe.objectives["generator"], traces), traces)

    learner = module.Learner(base_model())
    module.update(learner, base_model().requires_grad_(False), answers, on_tokens)
    assert_same_weights(learner.model, trainer, "generator")


def test_its_answers_are_read_and_asked_for_as_ours(tokenizer):
    module = program("grpo")
    step = CoTrainer(find_recipe("grpo")(steps=2, seed=1, **SIZE)).step()
    for trace in traces_of(step.episodes, "solver"):
        problem = {"problem": trace.findings["problem"], "answer": trace.metadata["gold"]}
        prompt = module.encode_prompt(tokenizer, module.PROMPT.format(problem=problem["problem"]))
        assert prompt == list(trace.prompt_ids)
        assert module.outcome_reward(problem, trace.text) == value(trace, "outcome")


@pytest.fixture(scope="module")
def tango_steps():
    """A step of the verifier and one of the generator, and the weights after each."""
    trainer = CoTrainer(
        find_recipe("tango")(
            steps=2, seed=3, warmup=1, ratio=(1, 1), reviews=4, alpha=ALPHA, **{**SIZE, "tasks_per_step": 8}
        )
    )
    judged, weights = trainer.step(), {k: t.clone() for k, t in trainer.policies.tensors()["verifier"].items()}
    return trainer, judged, weights, trainer.step()


def test_the_verifier_of_tango_makes_the_update_of_ours(tango_steps):
    module = program("tango")
    trainer, judged, weights, _ = tango_steps
    ours = our_advantages(trainer.recipe.objectives["verifier"], traces_of(judged.episodes, "verifier"))
    samples, advantages, labels, kept = [], [], [], []
    for traces in groups_of(judged.episodes, "verifier").values():
        reviews = [sample_of(module, trace) for trace in traces]
        solution = next(t for t in traces_of(judged.episodes, "solver") if str(t.address) == traces[0].group)
        count = len(module.read_solution(solution.text).step_ends)
        read = [module.read_review(one.text, count) for one in reviews]
        label = bool(value(traces[0], "class_label"))
        agreements = [float(one is not None and one.final == label) for one in read]
        assert agreements == [value(trace, "agreement") for trace in traces]
        formats = [value(trace, "format") for trace in traces]
        worth = module.verifier_advantages(reviews, agreements, formats)
        assert_same_advantages(worth, ours, traces)
        labels += [label] * len(reviews)
        kept += [module.has_spread(worth)] * len(reviews)
        if module.has_spread(worth):
            samples += reviews
            advantages += worth
    assert samples and {True, False} <= set(labels)
    learner = module.Learner(base_model())
    module.update(learner, samples, advantages, weights=module.ClassBalance().weights(labels, kept))
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), weights[f"model.{name}"], atol=1e-5, rtol=0, msg=name)


@pytest.mark.whole
def test_the_class_balance_of_tango_remembers_as_ours():
    """Two steps of the verifier: the second one weighs by the running counts of both."""
    module = program("tango")
    trainer = CoTrainer(find_recipe("tango")(steps=3, seed=3, warmup=2, reviews=4, **{**SIZE, "tasks_per_step": 8}))
    learner, balance, weighed = module.Learner(base_model()), module.ClassBalance(), set()
    for _ in range(2):
        step = trainer.step()
        samples, advantages, labels, kept = [], [], [], []
        for traces in groups_of(step.episodes, "verifier").values():
            reviews = [sample_of(module, trace) for trace in traces]
            agreements = [value(trace, "agreement") for trace in traces]
            worth = module.verifier_advantages(reviews, agreements, [value(trace, "format") for trace in traces])
            labels += [bool(value(trace, "class_label")) for trace in traces]
            kept += [module.has_spread(worth)] * len(traces)
            if module.has_spread(worth):
                samples += reviews
                advantages += worth
        weights = balance.weights(labels, kept)
        weighed |= {round(float(weight), 6) for weight in weights}
        module.update(learner, samples, advantages, weights=weights)
    assert len(weighed) == 4, "two classes in each of two steps"
    assert_same_weights(learner.model, trainer, "verifier")


def test_the_generator_of_tango_makes_the_update_of_ours(tango_steps, tokenizer):
    module = program("tango")
    trainer, _, _, solved = tango_steps
    reviews = {str(t.group): t for e in solved.episodes for t in e.traces if t.role == "verifier"}
    ours = our_advantages(trainer.recipe.objectives["generator"], traces_of(solved.episodes, "solver"))
    samples, advantages = [], []
    for traces in groups_of(solved.episodes, "solver").values():
        group = [sample_of(module, trace) for trace in traces]
        steps = []
        for trace, one in zip(traces, group, strict=True):
            verdicts = None
            if str(trace.address) in reviews:
                count = len(module.read_solution(one.text).step_ends)
                read = module.read_review(reviews[str(trace.address)].text, count)
                verdicts = None if read is None else read.steps
            steps.append(module.step_rewards(tokenizer, one, verdicts))
        worth = module.generator_advantages(group, [value(t, "outcome") for t in traces], steps, ALPHA)
        assert_same_advantages(worth, ours, traces)
        if module.has_spread(worth):
            samples += group
            advantages += worth
    assert any(len(set(one.tolist())) > 1 for one in advantages), "no step was worth more than another"
    learner = module.Learner(base_model())
    module.update(learner, samples, advantages, reference=base_model().requires_grad_(False))
    assert_same_weights(learner.model, trainer, "generator")


def test_alpha_falls_as_ours():
    from cotrain.algorithms.samples import decay

    module, ours = program("tango"), decay(0.1, 0.001)
    for updates in range(12):
        assert module.alpha_at(updates, 10) == pytest.approx(ours(updates, 10), abs=1e-12)
    assert math.isclose(module.alpha_at(0, 10), 0.1)


def answers_of(module, step):
    """The answers of a step, and their outcomes [P, G]."""
    groups = groups_of(step.episodes, "solver")
    answers = [sample_of(module, trace) for traces in groups.values() for trace in traces]
    return answers, torch.tensor([[value(t, "outcome") for t in traces] for traces in groups.values()])


def test_the_reward_model_of_prime_makes_the_update_of_ours():
    module = program("prime")
    trainer = CoTrainer(find_recipe("prime")(steps=2, seed=1, warmup=1, **SIZE))
    answers, outcomes = answers_of(module, trainer.step())
    learner = module.Learner(base_model())
    module.update_reward_model(learner, base_model().requires_grad_(False), answers, outcomes.flatten())
    assert_same_weights(learner.model, trainer, "prm")


@pytest.mark.whole
def test_the_generator_of_prime_makes_the_update_of_ours():
    """After a step of the reward model alone that is large enough for rewards which rounding does not reach."""
    module = program("prime")
    module.KEEP = (0.0, 1.0)
    trainer = CoTrainer(find_recipe("prime")(steps=3, seed=1, warmup=1, keep=module.KEEP, prm_lr=0.01, **SIZE))
    trainer.step()
    generator, reward_model = module.Learner(base_model()), module.Learner(base_model())
    ours = trainer.policies.tensors()["prm"]
    with torch.no_grad():
        for name, parameter in reward_model.model.named_parameters():
            parameter.copy_(ours[f"model.{name}"])
    answers, outcomes = answers_of(module, trainer.step())
    module.train_step(generator, reward_model, base_model().requires_grad_(False), answers, outcomes)
    assert_same_weights(generator.model, trainer, "generator")


@pytest.mark.whole
@pytest.mark.parametrize(
    "command",
    [
        ("grpo.py", "--steps", "1", "--problems", "2", "--group-size", "2", "--held-out", "2"),
        ("tango.py", "--warmup", "1", "--cycles", "1", "--problems", "2", "--group-size", "2"),
        ("prime.py", "--steps", "1", "--problems", "2", "--group-size", "2", "--held-out", "2"),
    ],
    ids=NAMES,
)
def test_a_program_runs(command):
    done = subprocess.run([sys.executable, str(FOLDER / command[0]), *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 1" in done.stdout
