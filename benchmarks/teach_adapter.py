"""Teach a model conversations by a LoRA adapter, and merge it: a start of GRPO for a model too large to train whole.

    python benchmarks/teach_adapter.py ./qwen --data lessons.jsonl --out start

Rows are ``{"messages": [{"role", "content"}, …]}``; the tokens of the assistant are learned, as in ``cotrain sft``.
Each row is seen once a pass. Conversations of similar length share a batch, and batches come in a drawn order.

Written to ``--out``: the merged model, ready for ``cotrain run --model``, and ``adapter/`` as PEFT writes it. The
adapter and its optimiser are saved every few batches, and the same command goes on from there.

The output layer is computed for learned tokens alone, since a vocabulary of 150,000 costs more than the rest of a short
batch. A batch is computed in parts of at most ``--part-tokens``, which bounds the memory and changes nothing else. Left
out: packing, validation.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random

import torch
from torch import nn

from cotrain.core.threads import usable_cores
from cotrain.models.adapters import AdapterBase, merge_into_base
from cotrain.pretraining.corpora import jsonl_file
from cotrain.pretraining.documents import all_documents
from cotrain.pretraining.packing import Document
from cotrain.storage.file_ops import replace_file

POLICY = "taught"
STATE = "optimiser.pt"


def batches_of(documents: list[Document], size: int, seed: int) -> list[list[Document]]:
    """Documents of similar length together, in an order drawn by the seed."""
    by_length = sorted(documents, key=lambda document: len(document.ids))
    batches = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    Random(seed).shuffle(batches)
    return batches


def parts_of(documents: list[Document], tokens: int) -> list[list[Document]]:
    """A batch in parts of at most so many tokens, padding counted; a longer document is a part of its own."""
    parts: list[list[Document]] = []
    longest = 0
    for document in sorted(documents, key=lambda document: len(document.ids)):
        longest = len(document.ids)
        if not parts or longest * (len(parts[-1]) + 1) > tokens:
            parts.append([])
        parts[-1].append(document)
    return parts


def learned_tokens(documents: list[Document]) -> int:
    return sum(sum(document.learn[1:]) for document in documents)


def summed_loss(model: nn.Module, documents: list[Document], device: torch.device) -> torch.Tensor:
    """Cross-entropy of the learned tokens of some documents, summed."""
    longest = max(len(document.ids) for document in documents)
    ids = torch.zeros((len(documents), longest), dtype=torch.int64)
    seen = torch.zeros((len(documents), longest), dtype=torch.int64)
    learn = torch.zeros((len(documents), longest), dtype=torch.bool)
    for row, document in enumerate(documents):
        length = len(document.ids)
        ids[row, :length] = torch.tensor(document.ids)
        learn[row, :length] = torch.tensor(document.learn)
        seen[row, :length] = 1
    ids, seen, learn = ids.to(device), seen.to(device), learn.to(device)
    hidden = model.model(input_ids=ids, attention_mask=seen).last_hidden_state  # [B, L, D]
    targets = learn[:, 1:]
    logits = model.lm_head(hidden[:, :-1][targets])  # [N, V], N learned tokens
    return nn.functional.cross_entropy(logits.float(), ids[:, 1:][targets], reduction="sum")


def rate_at(step: int, steps: int, lr: float) -> float:
    """It rises over the first five batches, then falls in a line to a tenth."""
    rise = min(1.0, (step + 1) / 5)
    fall = 1.0 - 0.9 * step / steps
    return lr * rise * fall


class Teacher:
    """An adapter with its optimiser, which can be saved and taken up again."""

    def __init__(self, model: str, folder: Path, rank: int, seed: int, device: str) -> None:
        self.folder = folder
        self.base = AdapterBase(model)
        self.base.module.to(device)
        self.device = torch.device(device)
        self.step = 0
        if (folder / STATE).is_file():
            self.base.load(POLICY, folder)
        else:
            self.base.add(POLICY, rank=rank, alpha=2 * rank, targets="all-linear", seed=seed)
        self.base.activate(POLICY)
        self.weights = [weight for weight in self.base.module.parameters() if weight.requires_grad]
        self.optimiser = torch.optim.AdamW(self.weights, weight_decay=0.0)
        if (folder / STATE).is_file():
            saved = torch.load(folder / STATE, weights_only=True)
            self.step = saved["step"]
            self.optimiser.load_state_dict(saved["optimiser"])

    def learn(self, documents: list[Document], lr: float, part_tokens: int) -> float:
        """One update; returns the mean loss of a learned token before it."""
        self.optimiser.param_groups[0]["lr"] = lr
        count = learned_tokens(documents)
        total = 0.0
        for part in parts_of(documents, part_tokens):
            loss = summed_loss(self.base.module, part, self.device) / count
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        return total

    def save(self) -> None:
        """The adapter and its optimiser; what was saved before stays until all of this is written."""
        self.base.save(POLICY, self.folder)
        partial = self.folder / (STATE + ".partial")
        torch.save({"step": self.step, "optimiser": self.optimiser.state_dict()}, partial)
        partial.replace(self.folder / STATE)

    def merge(self, out: Path) -> None:
        """Write base and adapter as one model."""
        merged = merge_into_base(self.base, POLICY)
        merged.save_pretrained(out)
        self.base.tokenizer.save_pretrained(out)


def teach(given: argparse.Namespace) -> None:
    teacher = Teacher(given.model, given.out / "adapter", given.rank, given.seed, given.device)
    documents: list[Document] = []
    for file in given.data:
        documents += all_documents(jsonl_file(file), teacher.base.tokenizer, replies_only=True, longest=given.length)
    batches = []
    for number in range(given.passes):
        batches += batches_of(documents, given.batch, given.seed + number)
    print(f"{len(documents)} conversations, {len(batches)} batches, from batch {teacher.step}", flush=True)
    started = time.perf_counter()
    losses = []
    while teacher.step < len(batches):
        lr = rate_at(teacher.step, len(batches), given.lr)
        losses.append(teacher.learn(batches[teacher.step], lr, given.part_tokens))
        seconds = time.perf_counter() - started
        print(f"batch {teacher.step}/{len(batches)}: loss {losses[-1]:.3f}, {seconds:.0f} s", flush=True)
        if teacher.step % given.save_every == 0:
            teacher.save()
    teacher.save()
    teacher.merge(given.out)
    record = {
        "model": given.model,
        "data": [file.name for file in given.data],
        "conversations": len(documents),
        "batches": len(batches),
        "rank": given.rank,
        "lr": given.lr,
        "seed": given.seed,
        "losses": losses,
    }
    replace_file(given.out / "taught.json", json.dumps(record, indent=1).encode() + b"\n")
    print(f"model: {given.out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory or Hub name")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="conversations, .jsonl")
    parser.add_argument("--out", type=Path, required=True, help="where model and adapter go")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--batch", type=int, default=8, help="conversations of an update")
    parser.add_argument("--passes", type=int, default=1, help="over all of them")
    parser.add_argument("--length", type=int, default=512, help="tokens after which a conversation is cut")
    parser.add_argument("--part-tokens", type=int, default=768, help="tokens that are computed at a time")
    parser.add_argument("--save-every", type=int, default=8, help="batches between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=usable_cores())
    given = parser.parse_args()
    if (given.out / "taught.json").is_file():
        print(f"model: {given.out}, taught before")
        return
    torch.set_num_threads(given.threads)
    teach(given)


if __name__ == "__main__":
    main()
