"""What the processes of ``processes.Apart`` have loaded before they begin."""

import torch

import cotrain.backend.ranks
import cotrain.learn.algorithms
import cotrain.models.adapters  # noqa: F401

torch.set_num_threads(1)
