"""Several policies on one base in memory: low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) through PEFT.

A linear layer x W computes x W + α/r · x A B for the adapter that is active, A ``[in, r]`` and B ``[r, out]``. B begins
at zero, so a fresh adapter is the base bit for bit; A is drawn at an address of its own (seed, policy, parameter), so
it depends neither on other policies nor on the order of loading. With no adapter active the module is the base itself,
which serves frozen policies: the reference of a KL term costs no memory.

All layers hold one and the same list of active adapters, so that ``activate`` is a change of that list and of
``requires_grad``: PEFT's own ``set_adapter`` walks through all modules and costs as much as decoding a token does.

Left out: dropout (tokens are sampled without it), adapters of embeddings and of experts that stand in one tensor, DoRA
and other kinds with further weights, and several adapters in one forward pass.
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
PROBED = 8  # tokens on which a merged model is compared
FAR = 1e-3  # the share of the logits' spread that rounding may change
SAVED_PREFIX = "base_model.model."  # prefix of every weight in a file of PEFT's
PLAIN = {  # settings of PEFT under which an adapter is two matrices next to each layer, on an unchanged base
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "lora_dropout", "fan_in_fan_out",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying",
    "init_lora_weights",
}  # fmt: skip


class AdapterBase:
    """A frozen causal LM with the adapters of some policies. At most one of them is active; at first none is."""

    def __init__(self, name: str | os.PathLike[str], dtype: torch.dtype | str = torch.float32, **loading: Any) -> None:
        """All as for ``load_model``, which see for errors. Adapters are float32 on a bfloat16 base."""
        self.name = os.fspath(name)
        self.loading = loading
        self.module, self.tokenizer = load_model(name, dtype, **loading)
        self.module.requires_grad_(False)
        self._peft: PeftModel | None = None  # wraps ``module``, from the first adapter on
        self._active: list[str] = []  # adapters that take part in a forward pass; every layer holds this very list
        self._weights: dict[str, dict[str, nn.Parameter]] = {}  # policy → name as saved → weight

    @property
    def policies(self) -> tuple[str, ...]:
        """Those that have an adapter here."""
        return tuple(self._weights)

    @torch.no_grad()
    def add(self, policy: str, *, rank: int, alpha: int, targets: str | Sequence[str], seed: int) -> None:
        """A new adapter that changes nothing yet.

        Args:
            rank, alpha: see the module; ``alpha / rank`` scales what the adapter adds.
            targets: "all-linear" (all linear layers but the output layer), or names of layers such as "q_proj".
            seed: of the run; A is drawn as PEFT does, uniform in ±1/√in.

        Raises ModelError for targets that the model does not have.
        """
        names = [targets] if isinstance(targets, str) else list(targets)
        chosen = ALL_LINEAR if names == [ALL_LINEAR] else names
        config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, target_modules=chosen)
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
        """The adapter in a directory that ``save`` or PEFT wrote, with the rank, α and targets that it has.

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
        """From now on ``module`` computes with this policy's adapter, or as the plain base for None.

        Weights of the active adapter require gradients, no others do. Call it before every forward pass, and nothing
        between a forward pass and its backward pass: autograd drops gradients of weights that do not require them by
        then. Raises UnknownName, the active adapter unchanged, for a policy without an adapter here.
        """
        if policy is not None and policy not in self._weights:
            raise UnknownName(f"adapter on the base {self.name!r}", policy, self._weights)
        wanted = [] if policy is None else [_adapter_name(policy)]
        if wanted == self._active:
            return
        for name, weights in self._weights.items():
            if _adapter_name(name) in (*wanted, *self._active):
                for weight in weights.values():
                    weight.requires_grad = name == policy
        self._active[:] = wanted

    def reread_weights(self) -> None:
        """Take the weights anew from the module, whose parameters others have been put in the place of
        (``learner/fsdp.py``)."""
        present = dict(self.module.named_parameters())
        for policy, weights in self._weights.items():
            mark = f".{_adapter_name(policy)}."
            own = {SAVED_PREFIX + name.replace(mark, "."): p for name, p in present.items() if mark in name}
            self._weights[policy] = {name: own[name] for name in weights}

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
        """Put an adapter into the module and return its weights; none is active then. If this raises, the base is of no
        use any more."""
        if policy in self._weights:
            raise ModelError(
                f"{where}: the base {self.name!r} has an adapter of this policy already", code="E_ADAPTER_TWICE"
            )
        key = _adapter_name(policy)
        self.activate(None)
        config.base_model_name_or_path = None  # else PEFT compares it with a path of ours
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # how PEFT goes about it is not the user's business; what came of it is
                # looked at below
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
        """An adapter of a layer whose weights are another layer's too would change both where it is merged."""
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
    """A model of its own: the base with one policy's adapter added to its weights. Raises UnknownName, and ModelError
    where it does not compute what base and adapter do."""
    with tempfile.TemporaryDirectory() as folder:
        base.save(policy, folder)
        plain = load_model(base.name, **{**base.loading, "load_in_4bit": False})[0]
        adapted: Any = PeftModel.from_pretrained(plain, folder).eval()

    vocabulary = adapted.config.get_text_config().vocab_size
    ids = torch.tensor([[(7 * i + 1) % vocabulary for i in range(PROBED)]])
    expected = adapted(input_ids=ids, use_cache=False).logits
    merged: PreTrainedModel = adapted.merge_and_unload()
    distance = (merged(input_ids=ids, use_cache=False).logits - expected).norm() / (
        expected - expected.mean(-1, True)
    ).norm()
    if not distance <= FAR:
        raise ModelError(
            f"policy {policy!r}: merged into {base.name!r} it is another model (its logits are off by "
            f"{float(distance):.2g} of their spread); export it without --merged",
            code="E_ADAPTER_MERGE_INEXACT",
        )
    return merged


def merged_pairs(
    base: AdapterBase, policy: str, weights: Mapping[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]] | None:
    """(merged with the adapter that ``policy`` has here, merged with ``weights`` in its place) of every layer that the
    adapter reaches, one at a time; the adapter is ``weights`` afterwards. ``weights``: by name in the module. None
    where they are not those of such an adapter."""
    key = _adapter_name(policy)
    own = {name: p for name, p in base.module.named_parameters() if key in name.split(".")}
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        return None

    def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for name, module in base.module.named_modules():
            if isinstance(module, LoraLayer) and key in module.lora_A:
                layer: Any = module
                with torch.no_grad():
                    plain = full_weight(layer.get_base_layer())
                    before = plain + layer.get_delta_weight(key).float()
                    for part in ("lora_A", "lora_B"):
                        place = f"{name}.{part}.{key}.weight"
                        own[place].copy_(weights[place])
                    after = plain + layer.get_delta_weight(key).float()
                yield before, after

    return pairs()


def _adapter_name(policy: str) -> str:
    """Name of a policy's adapter in PEFT, where some names, such as "values", are taken."""
    return f"policy-{policy}"


def _may_be_one(saved: str, wanted: str) -> bool:
    """May two names be one base? Two names of the Hub or of ours: if equal. Two directories here: if their weights
    are."""
    if saved == wanted or saved == hub_parts(wanted)[0]:
        return True
    try:
        one, other = resolve_model(saved), resolve_model(wanted)
        if isinstance(one, Path) and isinstance(other, Path):
            return bool(describe_model(one)["sha256"] == describe_model(other)["sha256"])
    except ModelError:  # a directory that is not on this machine: shapes have to decide
        return True
    return isinstance(one, Path) or isinstance(other, Path)
