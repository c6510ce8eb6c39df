"""``cotrain pretrain``, ``sft`` and ``teach`` on several ranks: the command itself is the first one, and the same
command is run in processes by Ray for the others. All are on this machine, since they read the same files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from cotrain.core.errors import ProcessLost, first_line
from cotrain.core.verbosity import set_level
from cotrain.distributed.cluster_file import LOCAL, read_cluster_file
from cotrain.distributed.ranks import LOSS, HostPort, meet_ranks, open_store, rank_label
from cotrain.distributed.ray_processes import RayLauncher, RayProcess
from cotrain.pretraining.ranks import Ranks

# a function of the words behind a command, and of the rank that the process is; None: the first one
StageCommand = Callable[[Sequence[str], Ranks | None], int]
GO_ON = "; go on with the same command and --resume"


class StageRank:
    """The handles of the processes of the other ranks."""

    def __init__(self, rank: int, world: int, patience: float) -> None:
        self._ranks = Ranks(rank=rank, world=world)
        self._patience = timedelta(seconds=patience)

    def train(self, address: HostPort, command: StageCommand, words: Sequence[str], folder: str, on_gpu: bool) -> None:
        """Meet the others, then run the command with them."""
        os.chdir(folder)
        set_level("error")
        meet_ranks(address, self._ranks.rank, self._ranks.world, self._patience, here=True, on_gpu=on_gpu)
        command(words, self._ranks)


@contextmanager
def other_ranks(command: StageCommand, words: Sequence[str], world: int, device: str) -> Iterator[Ranks]:
    """Begin the others, and be the first. Raises ConfigError without Ray, ProcessLost where one is gone."""
    name = command.__name__.replace("_", " ")  # "teach solver"
    launcher = RayLauncher(read_cluster_file(LOCAL))
    launcher.start()
    patience = timedelta(seconds=launcher.deadline)
    on_gpu = device.startswith("cuda")
    processes = [
        launcher.begin(rank_label(name, rank, world), StageRank, (rank, world, launcher.deadline))
        for rank in range(1, world)
    ]
    try:
        store, address = open_store(world, patience, here=True)
        answers = [process.send("train", address, command, list(words), os.getcwd(), on_gpu) for process in processes]
        try:
            meet_ranks(store, 0, world, patience, here=True, on_gpu=on_gpu)
            yield Ranks(rank=0, world=world)
        except RuntimeError as error:  # torch's, where another rank is gone
            for process, answer in zip(processes, answers, strict=True):
                if process.is_done(answer, LOSS):
                    _raise_what_ended(process, answer, name)
            raise ProcessLost(f"{name}: a rank is gone ({first_line(error)}){GO_ON}", code="E_RANK_LOST") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in processes:
            process.kill()
        launcher.stop()


def _raise_what_ended(process: RayProcess, answer: Any, name: str) -> None:
    try:
        process.wait(answer, name)
    except ProcessLost as lost:
        raise ProcessLost(f"{first_line(lost)}{GO_ON}", code="E_RANK_LOST") from lost
