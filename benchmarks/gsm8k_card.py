"""GRPO and then Tango on GSM8K with a real model, on a GPU machine that can reach nothing, in calls under ten minutes.

    python benchmarks/gsm8k_card.py pack runs/gsm8k --gguf model.gguf --tokenizer ./qwen --parts .card    here, once
    python benchmarks/gsm8k_card.py take .card/part-00                              there, one part or more a call
    python benchmarks/gsm8k_card.py train --minutes 8 --out "$OUT"                  there, until its exit code is 0
    python benchmarks/gsm8k_card.py rehearse                                        all of it here, tiny

``pack`` cuts everything that is needed into parts of at most ``--part-mib``: the weights as they were quantised,
without the second copy of the embedding (391 MB; docs/gsm8k.md says where the file is from), the tokenizer, the
adapters that make the start of them, and the problems. ``take`` checks a part by its hash, keeps it in
``runs/gsm8k/parts`` and says which are missing. ``train`` puts them together, makes the start as it is made here
(``teach_adapter.py``), and runs the arms ``grpo`` and ``tango`` of ``gsm8k.toml`` with one seed, 60 batches of 32
problems and 8 answers. When its minutes are over it stops with exit code 75; the same command goes on, as long as the
machine has kept its folder.

Written to ``--out`` after each call, in at most seven files of at most 15 MiB: ``page.md``, ``training.svg`` once both
arms are done, ``records.tar.gz`` (metrics, figures, the rollouts of the first and the last batch), and the adapters in
bfloat16 as ``adapters-0`` …, parts of one tar file: ``cat adapters-* | tar x``.

There it needs torch, transformers, peft, and a folder of what else is imported (7 MiB):

    pip install --target card --no-deps gguf math-verify latex2sympy2_extended antlr4-python3-runtime==4.13.2 \\
        httpx2 httpcore2 truststore
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, DataError
from cotrain.storage.file_ops import replace_file

HERE = Path(__file__).resolve().parent
STORE = Path("runs/gsm8k")  # below the folder in which it is called: where gsm8k.toml looks for model and problems
STUDY = HERE / "gsm8k.toml"
MANIFEST = "manifest.json"
ARMS = ("grpo", "tango")
ADAPTERS = {"grpo": ("solver",), "tango": ("solver", "verifier")}  # roles whose adapters are brought back
PIECE = 15 << 20  # bytes of a file that is brought back
LARGE = {"tasks_per_step": 32}
LARGE_SETTINGS = ("evaluation.tasks=256", "evaluation.curve_tasks=64", "policies.generator.micro_tokens=16384")
ARM_SETTINGS = {  # in place of those for a CPU, which bound the memory
    "tango": ("roles.verifier.sampling.max_tokens=256", "policies.verifier.micro_tokens=16384"),
}
BATCHES, WARMUP = 60, 6
TINY = {"tasks_per_step": 2, "group_size": 2, "lora": 4}
TINY_SETTINGS = (
    "evaluation.tasks=4",
    "evaluation.curve_tasks=2",
    "roles.solver.sampling.max_tokens=24",
)
TINY_BATCHES, TINY_WARMUP = 3, 1


# -- here: what travels


def lean_gguf(source: Path, out: Path) -> None:
    """A GGUF file without its token embedding, where it has the output layer beside it, tied in the original."""
    import gguf  # in the environment that makes the model; nothing else here needs it

    reader = gguf.GGUFReader(source)
    if not any(tensor.name == "output.weight" for tensor in reader.tensors):
        raise DataError(f"{source}: has no output.weight; expected a file that holds the embedding twice")
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        if tensor.name != "token_embd.weight":
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pack(given: argparse.Namespace) -> None:
    """Write the parts and their manifest."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.tar"
        with tarfile.open(whole, "w") as archive:
            if given.gguf is not None:
                lean = Path(folder) / "base.gguf"
                lean_gguf(given.gguf, lean)
                archive.add(lean, "base.gguf")
                for file in sorted(given.tokenizer.glob("*.jinja")) + sorted(given.tokenizer.glob("tokenizer*")):
                    archive.add(file, f"tokenizer/{file.name}")
            else:
                archive.add(given.model, "base")
            for number, name in enumerate(given.adapters):
                archive.add(given.store / name / "adapter", f"adapters/{number}", filter=without_optimiser)
            archive.add(given.store / "problems", "problems")
        names = cut_file(whole, given.parts, given.part_mib << 20)
    print(f"{len(names)} parts in {given.parts}; there, a call for each: take {given.parts}/part-00 …, then train")


def without_optimiser(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith(".pt") else entry


def cut_file(whole: Path, folder: Path, size: int) -> list[str]:
    """Parts of a file with a manifest of their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {}
    with whole.open("rb") as file:
        while piece := file.read(size):
            name = f"part-{len(hashes):02d}"
            (folder / name).write_bytes(piece)
            hashes[name] = hashlib.sha256(piece).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    return list(hashes)


# -- there: what has arrived


def take(given: argparse.Namespace) -> None:
    """Keep parts that are whole, and say which are missing."""
    manifest = json.loads((given.part[0].parent / MANIFEST).read_text(encoding="utf-8"))
    kept = STORE / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(given.part[0].parent / MANIFEST, kept / MANIFEST)
    for part in given.part:
        content = part.read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.get(part.name):
            raise DataError(f"{part}: is not what {MANIFEST} says; bring it again")
        replace_file(kept / part.name, content)
    missing = [name for name in manifest if not (kept / name).is_file()]
    print(f"{len(manifest) - len(missing)} of {len(manifest)} parts are here; missing: {', '.join(missing) or 'none'}")


def make_start(device: str) -> None:
    """Put the parts together and merge the adapters, one after the other, as they were taught."""
    if (STORE / "start" / "config.json").is_file():
        return
    kept = STORE / "parts"
    if not (kept / MANIFEST).is_file():
        raise DataError(f"{kept}: no {MANIFEST}; bring the parts first, with take")
    names = list(json.loads((kept / MANIFEST).read_text(encoding="utf-8")))
    missing = [name for name in names if not (kept / name).is_file()]
    if missing:
        raise DataError(f"{kept}: {', '.join(missing)} is missing; bring it with take")
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        whole = Path(folder) / "whole.tar"
        with whole.open("wb") as file:
            for name in names:
                file.write((kept / name).read_bytes())
        with tarfile.open(whole) as archive:
            archive.extractall(folder, filter="data")
        base = Path(folder) / "base"
        if (Path(folder) / "base.gguf").is_file():
            read_gguf(Path(folder) / "base.gguf", Path(folder) / "tokenizer", base)
        for number, adapter in enumerate(sorted((Path(folder) / "adapters").glob("*"))):
            base = merge_adapter(base, adapter, Path(folder) / f"merged-{number}")
        shutil.rmtree(STORE / "problems", ignore_errors=True)
        shutil.move(Path(folder) / "problems", STORE / "problems")
        shutil.move(base, STORE / "start")
    print(f"the start is made: {STORE / 'start'}", flush=True)


def read_gguf(file: Path, tokenizer: Path, out: Path) -> None:
    """A model directory of a file whose output layer is the embedding too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = True
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise DataError(f"{file}: does not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out)
    shutil.copytree(tokenizer, out, dirs_exist_ok=True)


def merge_adapter(base: Path, adapter: Path, out: Path) -> Path:
    """As ``teach_adapter.py`` merges what it has taught, in float32."""
    from cotrain.models.adapters import AdapterBase, merge_into_base

    opened = AdapterBase(base)
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = str(base)
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    opened.load("taught", adapter)
    merge_into_base(opened, "taught").save_pretrained(out)
    opened.tokenizer.save_pretrained(out)
    return out


# -- there: training


def plan_of(given: argparse.Namespace) -> Any:
    """GRPO and Tango as ``gsm8k.toml`` has them, with one seed and a card's batches."""
    from cotrain.analysis.comparison.study_file import read_study

    plan = next(iter(read_study(STUDY, workers=1, device=given.device).parts.values()))
    changes = TINY if given.tiny else LARGE
    warmup = TINY_WARMUP if given.tiny else WARMUP
    arms = []
    for arm in plan.arms:
        if arm.label in ARMS:
            arguments = {**arm.arguments, **changes} | ({"warmup": warmup} if "warmup" in arm.arguments else {})
            arms.append(replace(arm, arguments=arguments, overrides=ARM_SETTINGS.get(arm.label, ())))
    more = TINY_SETTINGS if given.tiny else LARGE_SETTINGS
    return replace(
        plan,
        arms=tuple(arms),
        seeds=1,
        batches=TINY_BATCHES if given.tiny else BATCHES,
        checkpoint_every=1 if given.tiny else 5,
        overrides=(*plan.overrides, *more),
        out=STORE / "card",
    )


def train(given: argparse.Namespace) -> bool:
    """Train until it is done or the minutes are over, and write the page. Returns whether both arms are done."""
    from cotrain.analysis.comparison.compare import compare
    from cotrain.runs.run import Interrupted

    started = time.monotonic()
    make_start(given.device)
    left = given.minutes * 60 - (time.monotonic() - started)
    stop = threading.Timer(max(left, 1.0), os.kill, (os.getpid(), signal.SIGTERM))
    stop.daemon = True
    stop.start()
    plan = plan_of(given)
    done = True
    try:
        compare(plan, say=lambda line: print(line, flush=True))
    except Interrupted:
        done = False
    stop.cancel()
    bring_back(plan.out, given.out, time.monotonic() - started)
    print("both arms are done" if done else "the minutes are over; the same command goes on", flush=True)
    return done


# -- there: what comes back


def bring_back(runs: Path, out: Path, seconds: float) -> None:
    """Write page, curves, records and adapters."""
    out.mkdir(parents=True, exist_ok=True)
    begun = {arm: runs / arm / "seed-0" for arm in ARMS if (runs / arm / "seed-0" / "recipe.json").is_file()}
    (out / "page.md").write_text(page_of(begun, seconds), encoding="utf-8")
    if (runs / "training.svg").is_file():
        shutil.copyfile(runs / "training.svg", out / "training.svg")
    with tarfile.open(out / "records.tar.gz", "w:gz") as archive:
        for file in [*runs.glob("*.json*"), *runs.glob("*.md"), *runs.glob("*.svg")]:
            archive.add(file, file.name)
        for arm, run in begun.items():
            for file in [*run.glob("*.json"), *run.glob("*.jsonl"), run.parent / "seed-0.log"]:
                archive.add(file, f"{arm}/{file.name}")
            rollouts = "".join(json.dumps(row) + "\n" for row in rollouts_of(run))
            add_text(archive, f"{arm}/rollouts.jsonl", rollouts)
    bring_adapters(begun, out)


def add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode("utf-8")
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def bring_adapters(begun: dict[str, Path], out: Path) -> None:
    """The adapters of runs that have a checkpoint, in bfloat16, as parts of one tar file."""
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "adapters.tar"
        with tarfile.open(whole, "w") as archive:
            for arm, run in begun.items():
                for role in ADAPTERS[arm]:
                    target = Path(folder) / arm / role
                    exported = subprocess.run(
                        [sys.executable, "-m", "cotrain", "export", str(run), "--role", role, "--out", str(target)],
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    weights = target / "adapter_model.safetensors"
                    if exported.returncode != 0 or not weights.is_file():
                        print(f"no adapter of {arm} {role}: {exported.stderr.strip()[-200:]}", flush=True)
                        continue
                    narrow = {name: weight.bfloat16() for name, weight in load_file(weights).items()}
                    save_file(narrow, weights, metadata={"format": "pt"})
                    for name in ("adapter_config.json", "adapter_model.safetensors"):
                        archive.add(target / name, f"{arm}-{role}/{name}")
        with whole.open("rb") as file:
            for number, piece in enumerate(iter(lambda: file.read(PIECE), b"")):
                (out / f"adapters-{number}").write_bytes(piece)


def rollouts_of(run: Path) -> Iterator[dict[str, Any]]:
    """What was said in the first and in the last batch."""
    from cotrain.storage.ledger import Ledger

    ledger = Ledger(run / "episodes")
    steps = ledger.steps()
    for step in dict.fromkeys([*steps[:1], *steps[-1:]]):
        for episode in ledger.read(step):
            for trace in episode.traces:
                rewards = {signal.name: signal.value for signal in trace.rewards if signal.tokens is None}
                yield {
                    "step": step,
                    "task": episode.task_id,
                    "role": trace.role,
                    "text": trace.text,
                    "rewards": rewards,
                }


def page_of(begun: dict[str, Path], seconds: float) -> str:
    """Figures before and after, rewards along the way, what it cost, and one rollout of each arm."""
    lines = ["# GRPO and Tango on GSM8K, on a card", "", f"This call took {seconds:.0f} seconds.", ""]
    lines += ["| arm | batches | seconds | answers right in training, by quarters | greedy before | greedy after |"]
    lines += ["|---|---|---|---|---|---|"]
    for arm, run in begun.items():
        rows = [json.loads(line) for line in read_lines(run / "metrics.jsonl")]
        steps = [row for row in rows if "kind" not in row and row["step"] >= 0]
        spent = sum(part for line in read_lines(run / "timings.jsonl") for part in seconds_in(json.loads(line)))
        right = [row["solver/accuracy"] for row in steps if "solver/accuracy" in row]
        ends = [len(right) * i // 4 for i in range(5)]
        quarters = ", ".join(f"{sum(right[a:b]) / (b - a):.3f}" for a, b in pairwise(ends) if b > a)
        before = next((row["eval/solver/greedy"] for row in rows if "eval/solver/greedy" in row), None)
        summary = run / "summary.json"
        after = json.loads(summary.read_text())["after"]["solver/greedy"]["value"] if summary.is_file() else None
        cells = [arm, str(len(steps)), f"{spent:.0f}", quarters, figure(before), figure(after)]
        lines.append("| " + " | ".join(cells) + " |")
    for arm, run in begun.items():
        said = list(rollouts_of(run))
        if said:
            lines += ["", f"## {arm}: from its last batch", ""]
            last = [row for row in said if row["step"] == said[-1]["step"]][:2]
            lines += [f"{row['role']}, {row['rewards']}:\n\n```\n{row['text']}\n```\n" for row in last]
    return "\n".join(lines) + "\n"


def figure(value: float | None) -> str:
    return "not yet" if value is None else f"{value:.3f}"


def read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def seconds_in(row: dict[str, Any]) -> Iterator[float]:
    return (float(value) for name, value in row.items() if name in ("rollout", "update"))


# -- here: the rehearsal


def rehearse(given: argparse.Namespace) -> None:
    """Every step at tiny sizes in a folder of its own, with parts, and with training cut off and gone on with."""
    from gsm8k_tiny import make_tiny

    folder = Path(tempfile.mkdtemp(prefix="gsm8k-card-"))
    print(f"rehearsal in {folder}", flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    os.chdir(folder)
    (folder / "benchmarks").symlink_to(HERE)
    there = folder / "there"
    make_tiny(folder / "here")
    me = [sys.executable, str(HERE / "gsm8k_card.py")]
    here = [str(folder / "here"), "--model", str(folder / "here" / "base"), "--adapters", "first", "second"]
    subprocess.run([*me, "pack", *here, "--parts", str(folder / ".card"), "--part-mib", "1"], check=True)
    there.mkdir()
    (there / "benchmarks").symlink_to(HERE)
    os.chdir(there)
    for part in sorted((folder / ".card").glob("part-*")):
        subprocess.run([*me, "take", str(part)], check=True)
    words = [*me, "train", "--tiny", "--device", given.device, "--out", str(folder / "out")]
    cut_off_once_it_trains(words)
    subprocess.run([*words, "--minutes", "60"], check=True)
    check_files(folder / "out")
    print((folder / "out" / "page.md").read_text(encoding="utf-8"))
    shutil.rmtree(folder)


def cut_off_once_it_trains(words: Sequence[str]) -> None:
    """Begin a call, and stop it as its minutes would when GRPO has made a step. Raises DataError where it does not ask
    for another call."""
    metrics = STORE / "card" / "grpo" / "seed-0" / "metrics.jsonl"
    call = subprocess.Popen([*words, "--minutes", "60"])
    while call.poll() is None and not any('"phase"' in line for line in read_lines(metrics)):
        time.sleep(0.2)
    call.terminate()
    if call.wait() != GO_ON:
        raise DataError(f"the call that was cut off ended with {call.returncode}; expected {GO_ON}")
    print("cut off while GRPO trains; the next call goes on", flush=True)


def check_files(out: Path) -> None:
    """What comes back is as a call of the machine can bring it."""
    files = sorted(out.iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    if len(files) > 8 or max(sizes.values()) > 16 << 20:
        raise DataError(f"{out}: {sizes}; expected at most 8 files of at most 16 MiB")
    with tarfile.open(
        fileobj=io.BytesIO(b"".join(file.read_bytes() for file in sorted(out.glob("adapters-*"))))
    ) as all_:
        names = all_.getnames()
    with gzip.open(out / "records.tar.gz") as packed:
        packed.read(1)
    print(f"brought back: {sizes}; adapters: {sorted({name.split('/')[0] for name in names})}", flush=True)


GO_ON = 75  # exit code of a call that is to be made again


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="cut what is needed into parts")
    packing.add_argument("store", type=Path, help="folder with problems/ and the taught models")
    packing.add_argument("--gguf", type=Path, help="the quantised weights")
    packing.add_argument("--tokenizer", type=Path, help="directory with the tokenizer's files, with --gguf")
    packing.add_argument("--model", type=Path, help="or a model directory")
    packing.add_argument("--adapters", nargs="+", default=["first", "start"], help="in order (default: first start)")
    packing.add_argument("--parts", type=Path, required=True, help="where they go")
    packing.add_argument("--part-mib", type=int, default=55)
    taking = commands.add_parser("take", help="check and keep parts")
    taking.add_argument("part", type=Path, nargs="+")
    training = commands.add_parser("train", help="train, or go on; exit code 75: call again")
    training.add_argument("--minutes", type=float, default=8.0)
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--device", default="cuda")
    training.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    rehearsing = commands.add_parser("rehearse", help="all of it at tiny sizes")
    rehearsing.add_argument("--device", default="cpu")
    given = parser.parse_args(words)
    try:
        if given.command == "pack":
            if (given.gguf is None) == (given.model is None) or (given.gguf and not given.tokenizer):
                parser.error("pack: give --gguf FILE and --tokenizer DIR, or --model DIR")
            pack(given)
        elif given.command == "take":
            take(given)
        elif given.command == "train":
            return 0 if train(given) else GO_ON
        else:
            rehearse(given)
    except CotrainError as error:
        print(f"gsm8k_card: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
