"""An extension of vLLM's worker process: new weights are written into the tensors that it computes with.

vLLM mixes ``Extension`` into its worker; ``VllmEngine`` calls it by ``collective_rpc``. Loaded by vLLM, in its own
environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Extension:
    """Methods of every worker of vLLM."""

    model_runner: Any  # vLLM's

    def take_weights(self, named: Sequence[tuple[str, Any]]) -> None:
        """``named``: (name as in the model's directory, tensor) of all weights; a tied output layer is not among
        them."""
        self.model_runner.reload_weights(weights_iterator=iter(named))

    def repack_output(self) -> None:
        """On a CPU an output layer computes with a packed copy, which ``reload_weights`` leaves as it was where the
        layer is tied to the embedding."""
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if getattr(head, "cpu_linear", None) is not None:
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
