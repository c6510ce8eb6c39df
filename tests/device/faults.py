"""Faults that a GPU would show, planted one at a time: the tests on the pretended device must find each.

    python -m tests.device.faults [--only WORD]

A fault is found where its test fails with the words that belong to it, and without it that test passes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.torture.mutation import PRELOADED, ROOT, Copy

MIXED, WAITS = "two devices", "waits {"
GRPO = "test_methods.py::test_a_method_has_the_rows_of_the_cpu[grpo]"
STEP = "test_crossings.py::test_a_step_crosses_as_often_as_the_page_says[grpo]"
TOKEN = "test_crossings.py::test_a_sampled_token_waits_for_nothing_between_looks"
OFFLOAD = "test_offload.py::test_nobody_is_on_the_device_but_who_computes[tango]"
COOPER = "test_methods.py::test_a_method_has_the_rows_of_the_cpu[cooper]"


@dataclass(frozen=True, slots=True)
class Fault:
    """``old`` is replaced by ``new`` in a file of the package; ``test`` then fails with ``words``."""

    name: str
    file: str
    old: str
    new: str
    test: str
    words: str


FAULTS = (
    Fault(
        "a mask made on the CPU",
        "inference/static_kv_cache.py",
        "torch.arange(columns, device=positions.device)",
        "torch.arange(columns)",
        GRPO,
        "fixed shape",
    ),
    Fault(
        "rows kept on the CPU",
        "inference/decode_batch.py",
        "self._logprobs = torch.zeros(0, 0, device=device)",
        "self._logprobs = torch.zeros(0, 0)",
        GRPO,
        MIXED,
    ),
    Fault(
        "an index on the CPU that is refused",
        "inference/scheduler.py",
        "for _ in tile], device=self.device)",
        "for _ in tile])",
        GRPO,
        MIXED,
    ),
    Fault(
        "an index on the CPU that is copied at every use",
        "inference/cuda_graphs.py",
        "torch.tensor(finished, device=self.device)",
        "torch.tensor(finished)",
        STEP,
        WAITS,
    ),
    Fault(
        "a generator of the CPU",
        "inference/decode_batch.py",
        "    greedy = temperature < COLDEST\n",
        "    greedy = temperature < COLDEST\n    uniform = torch.rand_like(uniform, generator=torch.Generator())\n",
        GRPO,
        "generator",
    ),
    Fault(
        "numpy() of a tensor of the device",
        "distributed/remote_policies.py",
        "value.detach().cpu().numpy()",
        "value.detach().numpy()",
        "test_runs.py::test_engine_and_learners_apart_have_the_rows_of_one_process_on_the_cpu",
        "to numpy",
    ),
    Fault(
        "a batch that is not moved",
        "learner/learner.py",
        "move_to(batch, device), totals",
        "batch, totals",
        GRPO,
        MIXED,
    ),
    Fault(
        "a total that begins on the CPU",
        "pretraining/trainer.py",
        "total = torch.zeros((), device=batch.ids.device)",
        "total = torch.zeros(1)",
        "test_runs.py::test_stages_by_command",
        MIXED,
    ),
    Fault(
        "moments left on the CPU when a run goes on",
        "learner/optim.py",
        "tensor.detach().to(parameter.device, copy=True)",
        "tensor.detach().clone()",
        "test_crossings.py::test_a_resumed_learner_waits_no_more_often",
        MIXED,
    ),
    Fault(
        "a count of steps left on the CPU when a run goes on",
        "learner/optim.py",
        "tensor.detach().to(parameter.device, copy=True)",
        'tensor.detach().to("cpu" if field == "step" else parameter.device, copy=True)',
        "test_crossings.py::test_a_resumed_learner_waits_no_more_often",
        MIXED,
    ),
    Fault(
        "scores asked for with places on the CPU",
        "inference/scoring.py",
        "for prompt in batch], device=self.device)\n        with",
        "for prompt in batch])\n        with",
        COOPER,
        MIXED,
    ),
    Fault(
        "a wait for every token",
        "inference/cuda_graphs.py",
        "some_greedy=greedy, some_cut=cut",
        "some_greedy=None, some_cut=cut",
        TOKEN,
        "many - few == 4",
    ),
    Fault(
        "a copy to the CPU and back for every token",
        "inference/cuda_graphs.py",
        "self._ids[:count].copy_(self.running.last_tokens)",
        "self._ids[:count].copy_(self.running.last_tokens.cpu())",
        TOKEN,
        "many - few == 4",
    ),
    Fault(
        "something sent for every token",
        "inference/cuda_graphs.py",
        "self._positions[:count].copy_(self.running.positions)",
        "self._positions[torch.arange(count)] = self.running.positions",
        TOKEN,
        "sent == sent_too",
    ),
    Fault(
        "a wait for every figure of every micro-batch",
        "learner/learner.py",
        "sums[name] = sums[name] + (share if is_counted else 0.0)",
        "sums[name] = sums[name] + (float(share) if is_counted else 0.0)",
        STEP,
        WAITS,
    ),
    Fault(
        "autocast for another device",
        "learner/logprobs.py",
        "torch.autocast(self.device.type, dtype",
        'torch.autocast("cpu", dtype',
        "test_pretended.py::test_scores_in_half_precision_are_near_and_not_equal",
        "0.0001 <",
    ),
    Fault(
        "log-probabilities left on the device",
        "learner/logprobs.py",
        "on_cpu = predictions.float().cpu()",
        "on_cpu = predictions.float()",
        GRPO,
        "",
    ),
    Fault(
        "weights that stay while their policy rests",
        "models/offload.py",
        "            self._move(leaving, HOST)\n",
        "",
        OFFLOAD,
        "AssertionError",
    ),
    Fault(
        "copies in half precision that stay while their policy rests",
        "inference/scheduler.py",
        "            self._copies.clear()",
        "            pass",
        "test_offload.py::test_bytes_of_a_step[True-0]",
        "AssertionError",
    ),
    Fault(
        "a prompt of the server on the CPU",
        "distributed/policy_handles.py",
        "inputs = torch.tensor([ids], device=next(self.model.parameters()).device)",
        "inputs = torch.tensor([ids])",
        "test_runs.py::test_what_is_served_is_what_the_cpu_says",
        "",
    ),
)


def told(copy: Copy, test: str) -> tuple[bool, str]:
    """Does a test pass, and what it said; in a child of this process, which has imported neither package nor tests."""
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.chdir(copy.root)
                sys.stdout = sys.stderr = said
                for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "cotrain")]:
                    del sys.modules[name]
                sys.path.insert(0, str(copy.root))
                os.environ |= {"PYTHONPATH": str(copy.root), "OMP_NUM_THREADS": "1"}
                import pytest

                code = int(
                    pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"tests/device/{test}"])
                )
            finally:
                said.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status) == 0, said.read()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose names have this word")
    parser.add_argument("--part", default="1/1", help="which of so many parts of the faults")
    given = parser.parse_args(argv)
    part, parts = map(int, given.part.split("/"))
    sys.dont_write_bytecode = True
    for name in PRELOADED:
        with suppress(ImportError):
            __import__(name)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="device-faults-") as place:
        copy, fine = Copy(Path(place) / "copy"), set[str]()
        for fault in [fault for fault in FAULTS if given.only in fault.name][part - 1 :: parts]:
            began, file = time.monotonic(), copy.root / "cotrain" / fault.file
            source = (ROOT / "cotrain" / fault.file).read_text(encoding="utf-8")
            if source.count(fault.old) != 1:
                raise SystemExit(f"{fault.name}: {fault.file} has {source.count(fault.old)} times {fault.old!r}")
            file.write_text(source.replace(fault.old, fault.new), encoding="utf-8")
            passed, said = told(copy, fault.test)
            file.write_text(source, encoding="utf-8")
            found = not passed and fault.words in said
            if found and fault.test not in fine:
                clean, why = told(copy, fault.test)
                if not clean:
                    raise SystemExit(f"{fault.test} fails without any fault:\n{why}")
                fine.add(fault.test)
            missed += not found
            print(f"{'found ' if found else 'MISSED'} {time.monotonic() - began:5.1f} s  {fault.name}", flush=True)
            if not found:
                print(said[-3000:])
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
