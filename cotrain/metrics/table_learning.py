"""Descriptions of the metrics of credit and learning, a part of ``table.py``."""

from __future__ import annotations

import math

from cotrain.metrics.metric import BOTH, COUNT, HELD_OUT, MAIN, NATS, NUMBER, UNKNOWN, Metric

inf = math.inf
EXPLORING = "Near zero it has stopped exploring, far above one it is losing its language: lower the learning rate."

CREDIT = (
    Metric(key="{objective}/credit/traces", unit=COUNT, meaning="traces that credit was given for"),
    Metric(key="{objective}/credit/samples", unit=COUNT, trend="above 0", meaning="samples that it made of them"),
    Metric(
        key="{objective}/groups", unit=COUNT,
        meaning="groups they fall into (of a pairwise loss: groups with a pair)",
    ),
    Metric(
        key="{objective}/zero_spread_groups", label="groups without spread", better=-1, healthy=(0, 0.6),
        tolerable=(0, 0.8),
        meaning="share of groups in which all rewards are equal, so that they teach nothing; where rewards are not "
            "compared within groups (REINFORCE++), 1 if those of the batch are all equal, else 0",
        advice="Most groups have equal rewards and teach nothing: change the difficulty of the problems, or use "
            "larger groups.",
    ),
    Metric(key="{objective}/credit/reward/{signal}", unit=UNKNOWN, meaning="mean of a whole-trace reward over those "
        "traces"),
    Metric(key="{objective}/coverage/{signal}", trend="near 1", meaning="share of traces that have rewards for steps"),
    Metric(key="{objective}/count/{signal}", unit=NUMBER, meaning="steps of a trace that has them"),
    Metric(
        key="{objective}/advantage/{signal}", unit=NUMBER,
        meaning="mean size of a channel's advantage per token, before mixing",
    ),
    Metric(key="{objective}/advantage_mix/{signal}", unit=NUMBER, meaning="weight of the channel in the mixture"),
    Metric(
        key="{objective}/balance/{name}", unit=NUMBER, trend="weights below 3",
        meaning="class balance: running share of right ones, weights of both classes, traces without a class",
    ),
    Metric(key="{objective}/dropped/{reason}", unit=COUNT, meaning="traces that were not learned from"),
    Metric(
        key="{objective}/scored/{name}", unit=COUNT,
        meaning="tokens passed through a model for `values`, `reference` or `scores`: a needless pass shows here",
    ),
    Metric(key="{objective}/advantage", unit=NUMBER, meaning="PPO: mean size of the advantage per token"),
    Metric(key="{objective}/return", unit=NUMBER, meaning="PPO: mean return of a trace"),
    Metric(
        key="{objective}/explained_variance", unit=NUMBER, better=1, trend="rising, below 1",
        meaning="critic: share of the returns' variance that its values explain",
    ),
    Metric(key="{objective}/kept_groups", unit=COUNT, meaning="PRIME: groups within the band of accuracy"),
    Metric(key="{objective}/process/reward", unit=NUMBER, meaning="PRIME: mean sum of process rewards of an answer"),
    Metric(
        key="{objective}/process/pair_accuracy", better=1, trend="above 0.5, rising",
        meaning="PRIME: pairs (right, wrong) of answers that these sums put in order",
    ),
    Metric(key="{objective}/pairs", unit=COUNT, meaning="pairs of a pairwise loss"),
    Metric(key="{objective}/beta", unit=NUMBER, meaning="preferences: β at this update"),
    Metric(
        key="{objective}/margin", unit=NUMBER, trend="rising within an iteration",
        meaning="preferences: mean of m, by how much more than the reference the better answer is preferred, in nats",
    ),
    Metric(
        key="{objective}/logprob/better", unit=NATS, trend="not falling",
        meaning="preferences: log-probability of the better answer, mean over pairs",
    ),
    Metric(key="{objective}/logprob/worse", unit=NATS, meaning="preferences: that of the worse one"),
    Metric(key="{objective}/pair_loss", unit=NUMBER, better=-1, meaning="reward model: their loss"),
    Metric(
        key="{objective}/pair_accuracy", headline=MAIN, label="pairs in order", better=1, at=BOTH,
        trend="above 0.5",
        meaning="the share of pairs that is put in order; held out, of a right and a wrong solution of one problem",
    ),
    Metric(
        key="{objective}/step_pair_accuracy", headline=MAIN, label="pairs of steps in order", better=1, at=HELD_OUT,
        trend="above 0.5",
        meaning="of a right and a wrong step in solutions of one problem: the share that process rewards put in order",
    ),
    Metric(
        key="{policy}/surprisal", headline=MAIN, label="surprisal of wanted replies, nats a token", unit=NATS,
        better=-1, at=HELD_OUT, trend="falling",
        meaning="mean −log-probability of a token of the replies in held-out conversations",
    ),
    Metric(key="{objective}/score_mean", unit=NUMBER, trend="not drifting", meaning="reward model: mean of its scores"),
    Metric(key="{objective}/score_std", unit=NUMBER, trend="not drifting", meaning="reward model: spread of its "
        "scores"),
)  # fmt: skip

LEARNING = (
    Metric(
        key="{policy}/flops/{part}", label="FLOPs: {part}", unit=COUNT,
        meaning="floating-point operations of the step: `prefill`, `sampling`, `scoring` (as reference, critic, reward "
        "model) and `learning`; `trainer/flops.py` has the formula",
    ),
    Metric(
        key="{policy}/update_sparsity", label="weights as at the start, in bfloat16", at=HELD_OUT,
        meaning="at the end of a run: share of the policy's weights that are the same number in bfloat16 as at its "
        "start (arXiv 2505.11711); an adapter is merged into its base first",
    ),
    Metric(
        key="{policy}/update_sparsity_1e-5", label="weights as at the start, within 1e-5", at=HELD_OUT,
        meaning="the same, where numbers that differ by at most 1e-5 count as equal",
    ),
    Metric(key="{policy}/updates", unit=COUNT, meaning="optimiser steps so far"),
    Metric(
        key="{policy}/updates_behind", unit=COUNT,
        meaning="with `--async-steps K`: optimizer steps between sampling and learning, on average",
    ),
    Metric(
        key="{policy}/skipped", unit=COUNT, healthy=(0, 0),
        meaning="1 where the step made none: nothing to learn from, or a gradient that is not finite",
    ),
    Metric(
        key="{policy}/skipped/{reason}", unit=COUNT, trend="absent",
        meaning='1 where it was for this reason; of batches that were "non-finite", `skipped.jsonl` has the addresses',
    ),
    Metric(
        key="{policy}/out_of_memory", unit=COUNT, trend="absent",
        meaning="how often memory ran out in the step, so that an update, a pass that scores or a batch of answers was "
            "computed again in parts of half the size",
    ),
    Metric(key="{policy}/micro_tokens", unit=COUNT, meaning="tokens of a micro-batch from then on, where an update "
        "ran out"),
    Metric(key="{policy}/grad_norm", label="gradient norm", unit=NUMBER, trend="steady",
        meaning="gradient norm before clipping"),
    Metric(key="{policy}/lr", unit=NUMBER, meaning="learning rate"),
    Metric(key="{policy}/learned_tokens", unit=COUNT, meaning="tokens of the update"),
    Metric(key="{policy}/{objective}/loss", label="loss", unit=NUMBER, meaning="loss of one objective"),
    Metric(key="{policy}/{objective}/samples", unit=COUNT, meaning="traces that it learned from"),
    Metric(key="{policy}/{objective}/tokens", unit=COUNT, meaning="tokens that it learned from"),
    Metric(
        key="{policy}/{objective}/flat_tokens", unit=COUNT,
        meaning="those of traces whose advantages are all 0: nothing reads them, so the update leaves them out but "
            "counts them in its totals; means over tokens are of the others",
    ),
    Metric(
        key="{policy}/{objective}/surprisal", label="surprisal per token, nats", unit=NATS,
        healthy=(0.01, 1), tolerable=(0.003, 2), advice=EXPLORING,
        meaning="mean −log-probability of its own sampled tokens: an estimate of its entropy, over what is learned "
            "from",
    ),
    Metric(
        key="{policy}/{objective}/entropy", label="entropy per token, nats", unit=NATS, healthy=(0.03, 1),
        tolerable=(0.01, 2),
        advice=EXPLORING, meaning="mean entropy per token, where an entropy bonus asks for it",
    ),
    Metric(
        key="{policy}/{objective}/ratio", label="probability ratio, new to old", unit=NUMBER, trend="near 1",
        meaning="mean probability ratio, new to old",
    ),
    Metric(
        key="{policy}/{objective}/clip_fraction", label="clipped tokens", healthy=(0, 0.2), tolerable=(0, 0.4),
        meaning="share of tokens at the clipping limit",
        advice="Many tokens sit at the clipping limit: lower the learning rate or make fewer updates from one batch.",
    ),
    Metric(
        key="{policy}/{objective}/sampler_trainer_diff", label="sampler against trainer, nats", unit=NATS,
        healthy=(0, 0.02), tolerable=(0, 0.1), meaning="mean distance of sampler's and trainer's log-probabilities",
        advice="Sampler and trainer disagree about the same tokens: the sampler may hold old weights.",
    ),
    Metric(
        key="{policy}/{objective}/sampler_trainer_kl", label="KL of sampler to trainer, nats", unit=NATS,
        # On the shipped base a third of what was learned was lost at 0.006 (docs/memory.md): one model, five seeds.
        healthy=(0, 0.001), tolerable=(0, 0.01), meaning="KL of the sampler to the trainer, per token (k3)",
        advice="Sampler and trainer disagree about the same tokens: the sampler may hold old weights.",
    ),
    Metric(
        key="{policy}/{objective}/mismatch_masked", label="left out for mismatch", better=-1,
        healthy=(0, 0.01), tolerable=(0, 0.1),
        meaning="share of tokens in answers that sampler and trainer see too differently, which are not learned from",
        advice="They disagree about whole answers: see sampler_trainer_diff, and whether weights arrive.",
    ),
    Metric(
        key="{policy}/{objective}/kl", label="KL to the reference, nats per token", unit=NATS,
        healthy=(0, 0.2), tolerable=(-0.05, 0.5), meaning="KL to the reference, per token",
        advice="The policy is far from where it started: raise the KL coefficient or lower the learning rate.",
    ),
    Metric(
        key="{policy}/{objective}/value_error", unit=NUMBER, better=-1, trend="falling",
        meaning="critic: mean squared error of values",
    ),
    Metric(
        key="{policy}/{objective}/accuracy", better=1,
        meaning="reward models: share judged rightly, over what is learned from",
    ),
    Metric(key="{policy}/{objective}/reward", unit=NUMBER, meaning="reward models: mean reward per token"),
    Metric(key="{policy}/{objective}/score", unit=NUMBER, meaning="reward models: mean score"),
    Metric(key="{policy}/{objective}/grad_norm", unit=NUMBER, meaning="gradient norm of an objective alone, where "
        "several train a policy"),
    Metric(key="{policy}/{objective}/grad_share", trend="no share near 1", meaning="its share of their sum"),
    Metric(
        key="{policy}/cosine/{objective}/{objective}", unit=NUMBER, bounds=(-1.0, 1.0), healthy=(-0.3, inf),
        meaning="cosine between two objectives' gradients",
        advice="Two objectives pull the policy in opposite directions: weigh one of them less, or let them learn in "
            "turn.",
    ),
)  # fmt: skip
