"""A rank that has too little memory for a pass: all ranks go on with smaller ones, as one process would."""

import pytest
import torch

from cotrain.config.override import override
from cotrain.core.errors import RankShort
from cotrain.distributed import ranks
from cotrain.distributed.contract import ProcessStats
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.distributed.ranks import RankGroup, RankHost
from cotrain.learner.fsdp import ShardedScorer
from cotrain.runs import run as loop
from cotrain.storage import checkpoints
from cotrain.trainer.failures import LostProcesses
from tests.distributed.processes import Apart
from tests.distributed.test_group import Mixed
from tests.distributed.test_several import RECIPES, digest
from tests.helpers import Heard
from tests.sentences import refuses


class ShortInUpdate(RankHost):
    """Its second rank has no memory for the first pass of an update, unless passes are limited already."""

    gradient = True

    def join(self, address, limits, *settings):
        super().join(address, limits, *settings)
        predict, rank = ShardedScorer.predict, self._rank

        def short(scorer, rows, *, entropy=False):
            if rank == 1 and not limits and torch.is_grad_enabled() == self.gradient:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return predict(scorer, rows, entropy=entropy)

        ShardedScorer.predict = short


class ShortInScoring(ShortInUpdate):
    """The same, for a pass without a gradient."""

    gradient = False


def on_two(recipe, out, host, monkeypatch):
    monkeypatch.setattr(ranks, "RankHost", host)
    launcher, told = Mixed(), Heard()
    try:
        loop.start_run(recipe, out, checkpoint_every=1, backend=MultiProcessBackend(launcher, world=2), observer=told)
    finally:
        launcher.stop()
    return launcher, [line for line in told.lines if "memory" in line]


@pytest.mark.whole
def test_all_ranks_split_the_update_when_one_has_too_little_memory(tmp_path, monkeypatch):
    """It ends as the run that was begun with the smaller micro-batches."""
    out, same = tmp_path / "short", tmp_path / "same"
    launcher, told = on_two(RECIPES["adapters"](), out, ShortInUpdate, monkeypatch)
    assert launcher.begun == 2 * 2
    tokens = checkpoints.latest_checkpoint(out / "checkpoints").load()[1]["state"]["policies"]["generator"][
        "micro_tokens"
    ]
    how = f"all go on with passes of {tokens} tokens; going back to the start"
    assert told == [f"rank 1 of 2 had too little memory for a pass of policy 'generator'; {how}"]
    smaller = override(RECIPES["adapters"](), [f"policies.generator.micro_tokens={tokens}"])
    _, told = on_two(smaller, same, RankHost, monkeypatch)
    assert not told
    mine, theirs = digest(out), digest(same)
    assert mine.pop("state") != theirs.pop("state")  # it keeps the smaller micro-batches
    assert mine == theirs


@pytest.mark.whole
def test_so_they_do_for_a_pass_that_scores(tmp_path, monkeypatch):
    launcher, told = on_two(RECIPES["adapters"](), tmp_path / "run", ShortInScoring, monkeypatch)
    assert launcher.begun == 2 * 2
    assert len(told) == 1 and "a pass of policy 'reference'" in told[0]


class Odd:
    """In the place of ``RankHost``: its second rank has too little memory."""

    def __init__(self, rank, world, here, patience):
        self.rank = rank

    def address(self):
        return "here", 0

    def join(self, address, limits): ...

    def call(self, what):
        if self.rank == 1:
            raise RankShort(1, 2, 64, "generator")
        return what


@pytest.mark.whole
def test_the_group_ends_and_the_next_one_knows(monkeypatch):
    monkeypatch.setattr(ranks, "RankHost", Odd)
    launcher, limits = Apart(), {}
    group = RankGroup("the learners", launcher, (), limits, [ProcessStats(policies=()) for _ in range(2)])
    with refuses("E_RANK_MEMORY", names=("rank 1", "'generator'")):
        group.ask("answer")
    assert limits == {"generator": 64}
    assert not any(process.process.is_alive() for process in launcher.processes)
    losses = LostProcesses()
    for _ in range(9):
        losses.count_loss_or_raise(0, RankShort(1, 2, 64, "generator"))
