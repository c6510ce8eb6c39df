"""Reads a pickled ``tiktoken.Encoding`` as a fast tokenizer of transformers, and writes one; no code in the pickle
runs.

tiktoken has no list of merges: it always merges the two neighbours that make the token of lowest rank. A byte-level BPE
of ``tokenizers`` does the same if every split of a token into two tokens is a merge, in the order of ranks. Left out:
texts in which two different splits of one token overlap, which may be merged from the other end.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cotrain.core.errors import DataError, ModelError


class _Encoding:
    """In place of ``tiktoken.Encoding``: keeps the state in the pickle."""

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _EncodingUnpickler(pickle._Unpickler):  # in Python: the one in C allocates as much memory as a file asks for
    """Allows one class. Any other import raises an error before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("tiktoken.core", "Encoding"):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}"[:120])
        return _Encoding


def read_encoding(file: Path) -> PreTrainedTokenizerFast:
    """A pickled ``tiktoken.Encoding`` as a fast tokenizer that gives the same ids.

    Raises DataError for any other pickle, ModelError for a pattern or ids that ``tokenizers`` cannot express.
    """
    try:
        value = _EncodingUnpickler(io.BytesIO(file.read_bytes())).load()
    except Exception as error:
        raise DataError(
            f"{file}: expected a pickled tiktoken.Encoding, but {str(error) or type(error).__name__}; nothing was run. "
            "Name a directory with tokenizer.json with --tokenizer",
            code="E_TIKTOKEN_UNREADABLE",
        ) from error
    state: dict[str, Any] = value.state if isinstance(value, _Encoding) and isinstance(value.state, dict) else {}
    parts: list[Any] = [state.get(key) for key in ("mergeable_ranks", "special_tokens", "pat_str")]
    ranks, special, pattern = parts
    if not (_is_table(ranks, bytes) and _is_table(special, str) and isinstance(pattern, str)):
        raise DataError(
            f"{file}: the encoding has no mergeable_ranks, special_tokens and pat_str; use --tokenizer",
            code="E_TIKTOKEN_UNREADABLE",
        )
    try:
        return _fast_tokenizer(ranks, special, pattern)
    except ModelError as error:
        raise ModelError(f"{file}: {error}; use --tokenizer", code=error.code) from error


def _is_table(value: Any, key: type) -> bool:
    return isinstance(value, dict) and all(isinstance(k, key) and isinstance(i, int) for k, i in value.items())


def _fast_tokenizer(ranks: dict[bytes, int], special: dict[str, int], pattern: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer with these ranks of tokens, ids of special tokens, and pattern for splitting texts."""
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([i]) not in ranks for i in range(256)):
        raise ModelError("the ranks are not 0 … n − 1 with every byte among them", code="E_TIKTOKEN_RANKS")
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    spelled = {token: spell(token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        for cut in range(1, len(token)):
            left = token[:cut]
            right = token[cut:]
            if left in ranks and right in ranks:
                merges.append((spelled[left], spelled[right]))

    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    core = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    try:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    except Exception as error:  # the library raises no narrower class
        raise ModelError(f"the pattern cannot be read by tokenizers ({error})", code="E_TIKTOKEN_PATTERN") from error
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    ordered = sorted(special, key=special.__getitem__)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ordered])
    with_other_id = [token for token in ordered if core.token_to_id(token) != special[token]]
    if with_other_id:
        raise ModelError(
            f"the special token {with_other_id[0]!r} does not follow the other ids without a gap",
            code="E_TIKTOKEN_SPECIAL_TOKENS",
        )
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


def pickle_encoding(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """A byte-level BPE tokenizer as a pickled ``tiktoken.Encoding``, as nanochat reads one; tiktoken is not needed.

    Raises ModelError for a tokenizer that tiktoken cannot express.
    """
    state = encoding_state(tokenizer)
    body = pickle.dumps(state, protocol=3)[2:-1]  # without the mark of its protocol and its stop
    make_empty = pickle.GLOBAL + b"tiktoken.core\nEncoding\n" + pickle.EMPTY_TUPLE + pickle.NEWOBJ
    return pickle.PROTO + b"\x03" + make_empty + body + pickle.BUILD + pickle.STOP


def encoding_state(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The state of a tiktoken encoding: name, pattern, the rank of each token, special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError("the tokenizer is not a fast one", code="E_NOT_TIKTOKEN")
    parts = json.loads(backend.to_str())
    model = parts["model"]
    pattern = _split_pattern(parts)
    special = {one["content"]: one["id"] for one in parts["added_tokens"]}
    byte_of = {letter: byte for byte, letter in enumerate(_byte_letters())}
    ordinary = {token: i for token, i in model["vocab"].items() if token not in special}
    if model["type"] != "BPE" or any(letter not in byte_of for token in ordinary for letter in token):
        raise ModelError("the tokenizer is no byte-level BPE", code="E_NOT_TIKTOKEN")
    ranks = {}
    for token, rank in sorted(ordinary.items(), key=lambda pair: pair[1]):
        ranks[bytes(byte_of[letter] for letter in token)] = rank
    products = []
    for merge in model["merges"]:
        parts_of_merge = merge if isinstance(merge, list) else merge.split(" ")
        products.append(ordinary["".join(parts_of_merge)])
    if products != sorted(products):
        raise ModelError("the tokenizer merges in another order than that of its ids", code="E_NOT_TIKTOKEN")
    _fast_tokenizer(ranks, special, pattern)  # raises for ids that tiktoken would not give
    return {"name": "rustbpe", "pat_str": pattern, "mergeable_ranks": ranks, "special_tokens": special}


def _split_pattern(parts: dict[str, Any]) -> str:
    """The pattern by which a text is cut before tokens are merged."""
    steps = (parts["pre_tokenizer"] or {}).get("pretokenizers") or []
    kinds = [step["type"] for step in steps]
    pattern = steps[0].get("pattern", {}).get("Regex") if kinds == ["Split", "ByteLevel"] else None
    if pattern is None or parts["normalizer"] is not None or steps[1]["use_regex"]:
        raise ModelError(
            "the tokenizer does not cut texts by one pattern, as those of tiktoken do", code="E_NOT_TIKTOKEN"
        )
    return str(pattern)


def _byte_letters() -> list[str]:
    """The letter for each byte in a byte-level vocabulary (GPT-2). A printable byte is its own letter."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    letters = []
    for byte in range(256):
        letters.append(chr(byte if byte in printable else next(others)))
    return letters
