"""What the processes of ``processes.Apart`` have loaded before they begin."""

import torch

import cotrain.algorithms.grpo
import cotrain.distributed.ranks
import cotrain.models.adapters  # noqa: F401

torch.set_num_threads(1)
