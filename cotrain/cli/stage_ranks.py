"""``cotrain pretrain``, ``sft`` and ``teach`` on several ranks. Rank 0 is the process of the command itself; Ray starts
a process for each other rank, which runs the same command. All are on this machine, since they read the same files."""

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

# A command, called with its arguments and the rank of the process. None: the user started it, and it is rank 0.
StageCommand = Callable[[Sequence[str], Ranks | None], int]
RESUME_HINT = "; go on with the same command and --resume"


class StageRank:
    """What runs in the process of a rank other than 0."""

    def __init__(self, rank: int, world: int, patience: float) -> None:
        self._ranks = Ranks(rank=rank, world=world)
        self._patience = timedelta(seconds=patience)

    def train(self, address: HostPort, command: StageCommand, words: Sequence[str], folder: str, on_gpu: bool) -> None:
        """Connect to the other ranks, then run the command with them. ``folder``: rank 0's, for paths in ``words``."""
        os.chdir(folder)
        set_level("error")  # rank 0 prints the progress
        meet_ranks(address, self._ranks.rank, self._ranks.world, self._patience, here=True, on_gpu=on_gpu)
        command(words, self._ranks)


@contextmanager
def other_ranks(command: StageCommand, words: Sequence[str], world: int, device: str) -> Iterator[Ranks]:
    """Start the other ranks, and yield rank 0, which this process is. They end with the body of the ``with``.

    Raises ConfigError without Ray, and ProcessLost if a rank dies.
    """
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
        except RuntimeError as error:  # from torch, if the connection to another rank is lost
            for process, answer in zip(processes, answers, strict=True):
                if process.is_done(answer, LOSS):  # waits up to LOSS seconds for it to end
                    _raise_its_error(process, answer, name)
            raise ProcessLost(
                f"{name}: a rank is gone ({first_line(error)}){RESUME_HINT}", code="E_RANK_LOST"
            ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in processes:
            process.kill()
        launcher.stop()


def _raise_its_error(process: RayProcess, answer: Any, name: str) -> None:
    """Raise the error with which a rank ended, if it ended with one."""
    try:
        process.wait(answer, name)
    except ProcessLost as lost:
        raise ProcessLost(f"{first_line(lost)}{RESUME_HINT}", code="E_RANK_LOST") from lost
