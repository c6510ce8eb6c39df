"""Several policies on one base in memory: low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) through PEFT.

A linear layer x W computes x W + α/r · x A B with the active adapter, A ``[in, r]`` and B ``[r, out]``. B starts at
zero, so a new adapter computes what the base does, bit for bit. A is drawn from a seed of its own (run, policy,
parameter), so it depends neither on other policies nor on the order of loading. Without an active adapter the module is
the base itself, which serves frozen policies: the reference of a KL term costs no memory.

All layers share one list object of active adapters, so ``activate`` changes only this list and ``requires_grad``.
PEFT's own ``set_adapter`` visits all modules, which takes as long as decoding a token.

Left out: dropout (tokens are sampled without it), adapters of embeddings and of experts whose weights are one tensor,
DoRA and other kinds with further weights, and several adapters in one forward pass.
"""

from __future__ import annotations

import copy
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from cotrain.core.errors import ModelError, UnknownName
from cotrain.core.seeding import seed_of
from cotrain.models.files import check_files, check_objects
from cotrain.models.load import (
    describe_model,
    first_line,
    hub_parts,
    load_model,
    report_model_errors,
    resolve_model,
)
from cotrain.models.names import base_of
from cotrain.models.quantize import full_weight

ALL_LINEAR = "all-linear"
PROBE_TOKENS = 8  # length of the input on which a merged model is compared
MERGE_TOLERANCE = 1e-3  # most relative error of the logits that rounding explains
SAVED_PREFIX = "base_model.model."  # prefix of every weight in a file of PEFT's
PLAIN = {  # settings of PEFT that keep an adapter two matrices for each layer of an unchanged base
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "lora_dropout", "fan_in_fan_out",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying",
    "init_lora_weights",
}  # fmt: skip


class AdapterBase:
    """A frozen causal LM with the adapters of some policies. At most one of them is active; at first none is."""

    def __init__(self, name: str | os.PathLike[str], dtype: torch.dtype | str = torch.float32, **loading: Any) -> None:
        """Arguments and errors: see ``load_model``. Adapters are float32, also on a bfloat16 base."""
        self.name = os.fspath(name)
        self.loading = loading
        self.module, self.tokenizer = load_model(name, dtype, **loading)
        self.module.requires_grad_(False)
        self._peft: PeftModel | None = None  # wraps ``module``, from the first adapter on
        self._active: list[str] = []  # adapters of the next forward pass; all layers share this list object
        self._weights: dict[str, dict[str, nn.Parameter]] = {}  # policy → {name in PEFT's file: weight}

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that have an adapter on this base."""
        return tuple(self._weights)

    @torch.no_grad()
    def add(self, policy: str, *, rank: int, alpha: int, targets: str | Sequence[str], seed: int) -> None:
        """Add a new adapter, which changes nothing yet.

        Args:
            rank, alpha: r and α above.
            targets: "all-linear" (all linear layers but the output layer), or names of layers such as "q_proj".
            seed: that of the run. A is drawn as PEFT does, uniform in ±1/√in.

        Raises ModelError for targets that the model does not have.
        """
        names = [targets] if isinstance(targets, str) else list(targets)
        target_modules = ALL_LINEAR if names == [ALL_LINEAR] else names
        config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, target_modules=target_modules)
        weights = self._insert_adapter(policy, config, f"adapter of policy {policy!r} on {self.name!r}")
        for name, weight in weights.items():
            if ".lora_A." in name:
                initial = torch.empty(weight.shape)
                generator = torch.Generator().manual_seed(seed_of(seed, "adapter", policy, name))
                nn.init.kaiming_uniform_(initial, a=math.sqrt(5), generator=generator)
                weight.copy_(initial)
            else:
                nn.init.zeros_(weight)
        self._weights[policy] = weights

    @torch.no_grad()
    def load(self, policy: str, path: str | os.PathLike[str]) -> None:
        """Add the adapter in a directory that ``save`` or PEFT wrote, with the rank, α and targets that it has.

        Raises ModelError when it is missing, broken, of another kind, or made for another base.
        """
        directory = Path(path).expanduser()
        where = f"adapter {str(path)!r} of policy {policy!r}"
        for file in (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME):
            if not (directory / file).is_file():
                raise ModelError(
                    f"{where}: no {file}; expected a directory written by PEFT's save_pretrained",
                    code="E_ADAPTER_FILE_MISSING",
                )
        check_files(directory, where)
        check_objects(directory, where)
        with report_model_errors(where):
            config = PeftConfig.from_pretrained(str(directory))
            saved = load_file(directory / SAFETENSORS_WEIGHTS_NAME)
        if not isinstance(config, LoraConfig):
            raise ModelError(f"{where}: is of kind {config.peft_type}; expected LORA", code="E_ADAPTER_KIND")
        defaults = asdict(LoraConfig())
        strange = {k: v for k, v in asdict(config).items() if k not in PLAIN and v != defaults.get(k)}
        if config.init_lora_weights not in (True, False, "gaussian"):  # others change the base
            strange["init_lora_weights"] = config.init_lora_weights
        if strange:
            settings = ", ".join(f"{field}={value}" for field, value in sorted(strange.items()))
            raise ModelError(
                f"{where}: has {settings}; expected plain LoRA on an unchanged base", code="E_ADAPTER_SETTINGS"
            )
        other = config.base_model_name_or_path
        if other and not _may_be_one(other, self.name):
            raise ModelError(
                f"{where}: was made for the base {other!r}, this policy has {self.name!r}; change one",
                code="E_ADAPTER_BASE",
            )
        config.lora_dropout = 0.0
        config.init_lora_weights = True
        config.inference_mode = False
        weights = self._insert_adapter(policy, config, where)
        wrong = sorted(set(saved) ^ set(weights))
        wrong += [name for name in sorted(set(saved) & set(weights)) if saved[name].shape != weights[name].shape]
        if wrong:
            raise ModelError(
                f"{where}: does not fit the base {self.name!r}: {len(wrong)} of {len(saved)} weights are missing "
                f"there, in excess or of another shape, such as {wrong[0]!r}; give the base that it was trained on",
                code="E_ADAPTER_WEIGHTS_MISFIT",
            )
        for name, weight in weights.items():
            weight.copy_(saved[name])
        self._weights[policy] = weights

    def activate(self, policy: str | None) -> None:
        """Make ``module`` compute with this policy's adapter, or as the plain base for None.

        Only weights of the active adapter require gradients. Call this before every forward pass, and never between a
        forward pass and its backward pass: autograd drops the gradients of weights that do not require them then.
        Raises UnknownName, with the active adapter unchanged, for a policy without an adapter here.
        """
        if policy is not None and policy not in self._weights:
            raise UnknownName(f"adapter on the base {self.name!r}", policy, self._weights)
        new_active = [] if policy is None else [_adapter_name(policy)]
        if new_active == self._active:
            return
        for name, weights in self._weights.items():
            if _adapter_name(name) in (*new_active, *self._active):
                for weight in weights.values():
                    weight.requires_grad = name == policy
        self._active[:] = new_active  # in place, as all layers share the list

    def reread_weights(self) -> None:
        """Look up the weights of all adapters again, after ``learner/fsdp.py`` replaced the module's parameters."""
        parameters = dict(self.module.named_parameters())
        for policy, weights in self._weights.items():
            infix = f".{_adapter_name(policy)}."
            by_saved_name = {}
            for name, parameter in parameters.items():
                if infix in name:
                    by_saved_name[SAVED_PREFIX + name.replace(infix, ".")] = parameter
            self._weights[policy] = {name: by_saved_name[name] for name in weights}

    def save(self, policy: str, path: str | os.PathLike[str]) -> None:
        """Write an adapter as PEFT does: ``PeftModel.from_pretrained(base, path)`` reads it. Raises UnknownName."""
        if policy not in self._weights or self._peft is None:
            raise UnknownName(f"adapter on the base {self.name!r}", policy, self._weights)
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        config = copy.copy(self._peft.peft_config[_adapter_name(policy)])
        config.base_model_name_or_path, config.revision = base_of(self.name)
        config.inference_mode = True
        config.save_pretrained(str(directory))
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self._weights[policy].items()}
        save_file(weights, directory / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})

    def _insert_adapter(self, policy: str, config: LoraConfig, where: str) -> dict[str, nn.Parameter]:
        """Insert an adapter into the module and return its weights by their names in PEFT's file. Afterwards no adapter
        is active. If this raises, the base cannot be used any more."""
        if policy in self._weights:
            raise ModelError(
                f"{where}: the base {self.name!r} has an adapter of this policy already", code="E_ADAPTER_TWICE"
            )
        key = _adapter_name(policy)
        self.activate(None)
        config.base_model_name_or_path = None  # else PEFT compares it with a path of ours
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the checks below replace PEFT's warnings
                if self._peft is None:
                    self._peft = get_peft_model(self.module, config, adapter_name=key)
                else:
                    self._peft.add_adapter(key, config)
        except ValueError as error:
            raise ModelError(f"{where}: {first_line(error)}", code="E_ADAPTER_NOT_MADE") from error
        layers = [module for module in self.module.modules() if isinstance(module, LoraLayer)]
        for layer in layers:
            layer.set_adapter(self._active)
        if not all(layer.active_adapters is self._active for layer in layers):
            raise ModelError(
                f"{where}: this version of PEFT copies the list of active adapters; install 0.21", code="E_PEFT_VERSION"
            )
        self.module.eval().requires_grad_(False)
        own = {name: p for name, p in self.module.named_parameters() if key in name.split(".")}
        strange = [name for name in own if not name.endswith((f".lora_A.{key}.weight", f".lora_B.{key}.weight"))]
        if strange or not own:
            example = strange[0].replace(f".{key}", "") if strange else "none"
            raise ModelError(
                f"{where}: expected adapters of linear layers only, found {example!r}; choose other targets",
                code="E_ADAPTER_LAYERS",
            )
        self._check_untied(key, where)
        return {SAVED_PREFIX + name.replace(f".{key}.", "."): p for name, p in own.items()}

    def _check_untied(self, key: str, where: str) -> None:
        """Raise ModelError for an adapter of a layer that shares its weights with another one: merging it would change
        both."""
        holders: dict[int, list[str]] = {}
        for name, module in self.module.named_modules():
            for weight in module.parameters(recurse=False):
                holders.setdefault(id(weight), []).append(name.replace(".base_layer", ""))
        for name, module in self.module.named_modules():
            if isinstance(module, LoraLayer) and key in module.lora_A:
                own_name = name.replace(".base_layer", "")
                others = []
                for weight in module.get_base_layer().parameters(recurse=False):
                    others += [holder for holder in holders[id(weight)] if holder != own_name]
                if others:
                    raise ModelError(
                        f"{where}: layer {name!r} shares its weights with {others[0]!r}, so what is learned there "
                        "could not be merged; leave it out of the targets",
                        code="E_ADAPTER_LAYER_SHARED",
                    )


@torch.no_grad()
def merge_into_base(base: AdapterBase, policy: str) -> PreTrainedModel:
    """A copy of the base with one policy's adapter merged into its weights. Raises UnknownName, and ModelError if the
    merged model does not compute what base and adapter do."""
    with tempfile.TemporaryDirectory() as folder:
        base.save(policy, folder)
        plain = load_model(base.name, **{**base.loading, "load_in_4bit": False})[0]
        adapted: Any = PeftModel.from_pretrained(plain, folder).eval()

    vocabulary = adapted.config.get_text_config().vocab_size
    ids = torch.tensor([[(7 * i + 1) % vocabulary for i in range(PROBE_TOKENS)]])
    expected = adapted(input_ids=ids, use_cache=False).logits
    merged: PreTrainedModel = adapted.merge_and_unload()
    error = merged(input_ids=ids, use_cache=False).logits - expected
    distance = error.norm() / (expected - expected.mean(-1, True)).norm()
    if not distance <= MERGE_TOLERANCE:
        raise ModelError(
            f"policy {policy!r}: merged into {base.name!r} it is another model (its logits are off by "
            f"{float(distance):.2g} of their spread); export it without --merged",
            code="E_ADAPTER_MERGE_INEXACT",
        )
    return merged


def merged_pairs(
    base: AdapterBase, policy: str, weights: Mapping[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]] | None:
    """The merged weight of every layer with an adapter, before and after the adapter's weights are replaced, one layer
    at a time.

    Args:
        weights: new weights of the adapter, by name in the module. They are in it afterwards.

    Returns None if ``weights`` do not have the names and shapes of this policy's adapter.
    """
    key = _adapter_name(policy)
    own = {name: p for name, p in base.module.named_parameters() if key in name.split(".")}
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        return None

    def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for name, module in base.module.named_modules():
            if isinstance(module, LoraLayer) and key in module.lora_A:
                layer: Any = module
                with torch.no_grad():
                    base_weight = full_weight(layer.get_base_layer())
                    before = base_weight + layer.get_delta_weight(key).float()
                    for part in ("lora_A", "lora_B"):
                        weight_name = f"{name}.{part}.{key}.weight"
                        own[weight_name].copy_(weights[weight_name])
                    after = base_weight + layer.get_delta_weight(key).float()
                yield before, after

    return pairs()


def _adapter_name(policy: str) -> str:
    """Name of a policy's adapter in PEFT, where some names, such as "values", are taken."""
    return f"policy-{policy}"


def _may_be_one(saved: str, wanted: str) -> bool:
    """Whether two names may mean the same base. Names of the Hub, or of shipped models: if they are equal. Two
    directories: if their weights are equal. A name and a directory: it is possible."""
    if saved == wanted or saved == hub_parts(wanted)[0]:
        return True
    try:
        one, other = resolve_model(saved), resolve_model(wanted)
        if isinstance(one, Path) and isinstance(other, Path):
            return bool(describe_model(one)["sha256"] == describe_model(other)["sha256"])
    except ModelError:  # a directory that is not on this machine: possible, and shapes are checked later
        return True
    return isinstance(one, Path) or isinstance(other, Path)
