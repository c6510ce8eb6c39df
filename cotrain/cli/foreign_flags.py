"""Flags as TRL, lm-eval and others call them: each is taken as ours, or answered with what to write instead.
Underscores are as good as hyphens. A flag that the command has itself is never renamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from cotrain.core.errors import ConfigError

SAME = {  # ours, of which a command has the first or the next → what others call it
    ("--out",): "output-dir output-path output save-dir o",
    ("--lr",): "learning-rate",
    ("--steps",): "max-steps num-steps num-train-steps train-steps total-steps max-iterations",
    (
        "--group-size",
        "--samples",
    ): "num-generations rollouts-per-example num-samples num-return-sequences rollout-n k n",
    ("--tasks-per-step",): "prompts-per-step num-prompts train-batch-size rollout-batch-size",
    ("--model",): "model-name model-name-or-path pretrained base-model model-path hf-model",
    ("--data",): "dataset dataset-name dataset-path train-file train-data data-path",
    ("--suite",): "tasks task benchmarks benchmark",
    ("--problems", "--evaluation-tasks"): "limit num-problems max-eval-samples eval-samples",
    ("--evaluate-every",): "eval-steps eval-every eval-interval",
    ("--checkpoint-every", "--save-every"): "save-steps save-interval checkpoint-interval",
    ("--kl",): "beta kl-coef kl-coeff kl-weight kl-beta",
    ("--lora",): "lora-r lora-rank",
    ("--lr-decay",): "lr-scheduler-type lr-scheduler lr-schedule",
    ("--updates-per-batch",): "num-iterations num-ppo-epochs update-epochs ppo-epochs",
    ("--lr-warmup",): "warmup-steps lr-warmup-steps num-warmup-steps",
    ("--tracker",): "report-to logger",
    ("--batch-tokens",): "max-tokens-per-batch tokens-per-batch",
    ("--length",): "max-length max-seq-length max-seq-len block-size sequence-length seq-len",
    ("--max-tokens",): "max-new-tokens max-completion-length max-gen-toks max-response-length",
    ("--tokens",): "num-tokens train-tokens total-tokens",
    ("--reward",): "reward-funcs reward-func reward-function reward-fn",
    ("--question-column",): "prompt-column question-field input-column input-key question-key",
    ("--answer-column",): "answer-field label-column label-key answer-key target-column solution-column",
    ("--threads",): "num-threads cpus",
    ("--world",): "num-processes nproc-per-node gpus num-gpus n-gpus",
    ("--seed",): "random-seed manual-seed",
    ("--trust-code",): "trust-remote-code",
    ("--workers",): "num-workers jobs",
}
WRITTEN = {  # as others call it → what is written for it, with its value
    "max-tokens": "--set=roles.solver.sampling.max_tokens={}",
    "max-new-tokens": "--set=roles.solver.sampling.max_tokens={}",
    "max-completion-length": "--set=roles.solver.sampling.max_tokens={}",
    "max-response-length": "--set=roles.solver.sampling.max_tokens={}",
    "top-p": "--set=roles.solver.sampling.top_p={}",
    "epsilon": "--set=objectives.generator.by.loss.low={} --set=objectives.generator.by.loss.high={}",
    "epsilon-high": "--set=objectives.generator.by.loss.high={}",
    "max-grad-norm": "--set=policies.generator.clip_norm={}",
    "weight-decay": "--set=policies.generator.weight_decay={}",
}


SWITCHES = {"mask-truncated-completions": "mask-truncated"}  # as others call it, where true or false may follow → ours
USUAL = {"--lr-decay": "constant_with_warmup", "--tracker": "none"}  # values of others that say what is so anyway
BARE = {"quiet": "--log-level=warning", "silent": "--log-level=error", "verbose": "--log-level=debug"}
BARE |= {"debug": "--log-level=debug"}
ADVICE = {  # as others call it → what to do instead; the first of the flags named must be one of the command
    "batch-size": {
        "--tasks-per-step": "a step is --tasks-per-step problems times --group-size answers; memory is filled by "
        "itself, or by --set policies.generator.micro_tokens=N",
        "--batch-tokens": "a batch is counted in tokens: --batch-tokens N",
        "": "batches are as large as memory allows; leave it out",
    },
    "epochs": {
        "--steps": "a run is counted in steps: --steps N, of --tasks-per-step problems each",
        "--tokens": "training is counted in tokens: --tokens N",
    },
    "steps": {"--tokens": "training is counted in tokens: --tokens N, and a step has --batch-tokens of them"},
    "loss-type": {
        "--estimator": "how answers are compared is --estimator, as in --estimator dr_grpo; over what the loss is a "
        "mean is --set objectives.generator.by.normalise=…"
    },
    "scale-rewards": {
        "--estimator": "rewards are divided by the group's standard deviation with --estimator grpo, the default, and "
        "not with --estimator dr_grpo"
    },
    "use-peft": {"--lora": "an adapter is trained with --lora RANK, as in --lora 16"},
    "use-lora": {"--lora": "an adapter is trained with --lora RANK, as in --lora 16"},
    "logging-steps": {"": "every step is logged; leave it out"},
    "bf16": {"--set": "models are held as --set policies.generator.dtype=… says; `--dry-run` lists all settings"},
    "fp16": {"--set": "models are held as --set policies.generator.dtype=… says; `--dry-run` lists all settings"},
    "use-vllm": {"--engine": "vLLM samples with --backend ray --engine vllm"},
    "num-fewshot": {"": "problems are asked without examples; put some into --prompt FILE"},
    "resume-from-checkpoint": {"--steps": "a run is gone on with by `cotrain resume DIR`"},
    "max-prompt-length": {"": "a problem that does not fit is set aside and counted; leave it out"},
    "model": {"": "the model or the run is the first word, without a flag: `cotrain COMMAND DIR`"},
    "gradient-accumulation-steps": {"": "micro-batches are chosen by memory; leave it out"},
}
ALIKE = {  # further spellings of what is advised
    **dict.fromkeys(("per-device-train-batch-size", "per-device-eval-batch-size", "train-batch", "bs"), "batch-size"),
    **dict.fromkeys(("num-epochs", "num-train-epochs", "max-epochs"), "epochs"),
    **dict.fromkeys(("model-args", "model-name", "model-name-or-path", "pretrained", "model-path"), "model"),
    **dict.fromkeys(("max-steps", "num-steps", "num-train-steps", "train-steps", "total-steps"), "steps"),
    "resume": "resume-from-checkpoint",
    "log-steps": "logging-steps",
}
OURS = {theirs: own for own, names in SAME.items() for theirs in names.split()}


def rename_flags(words: Sequence[str], known: Collection[str], prog: str) -> list[str]:
    """The words with flags of other programs in the names of a command whose flags are ``known``. Raises ConfigError
    where another way is right; what nobody knows stays as it is."""
    renamed: list[str] = []
    rest = iter(_join_switches(words))
    for word in rest:
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*renamed, word, *rest]
        if not (word.startswith("--") or flag == "-o") or flag in known:
            renamed.append(word)
            continue
        name = flag.lstrip("-").replace("_", "-").lower()
        own = f"--{name}" if f"--{name}" in known else next((f for f in OURS.get(name, ()) if f in known), None)
        if own in USUAL:
            given = _value_behind(flag, equals, value, rest, prog)
            renamed += [] if given == USUAL[own] else [f"{own}={given}"]
        elif own is not None:
            renamed.append(f"{own}{equals}{value}")
        elif f"--{SWITCHES.get(name)}" in known:
            renamed.append(f"--{'no-' if value.lower() == 'false' else ''}{SWITCHES[name]}")
        elif name in WRITTEN and "--set" in known:
            given = _value_behind(flag, equals, value, rest, prog)
            renamed[:0] = [word.format(given) for word in WRITTEN[name].split()]  # in front: what says more counts more
        elif name in BARE and not equals:
            renamed.append(BARE[name])
        else:
            ways = ADVICE.get(ALIKE.get(name, name), {})
            advice = next((said for needed, said in ways.items() if not needed or needed in known), None)
            if advice is not None:
                raise ConfigError(f"{prog}: unknown argument {flag!r}: {advice}; see `{prog} --help`")
            renamed.append(word)
    return renamed


def _value_behind(flag: str, equals: str, value: str, rest: Iterator[str], prog: str) -> str:
    """The value of a flag, behind its "=" or in the next word. Raises ConfigError where there is none."""
    given = value if equals else next(rest, None)
    if given is None or given.startswith("--"):
        raise ConfigError(f"{prog}: argument {flag}: expected one argument")
    return given


def _join_switches(words: Sequence[str]) -> list[str]:
    """The words, with a "true" or "false" behind one of ``SWITCHES`` joined to it."""
    joined: list[str] = []
    for word in words:
        name = joined[-1].lstrip("-").replace("_", "-").lower() if joined else ""
        if name in SWITCHES and word.lower() in ("true", "false"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
