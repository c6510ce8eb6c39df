"""How large a model is, by the files that its weights consist of."""

import json
import shutil
from pathlib import Path

from transformers import AutoModelForCausalLM, MambaConfig

from cotrain.models.files import INDEX, SINGLE, weight_files
from cotrain.models.load import describe_model, load_model, load_tokenizer
from cotrain.models.sizes import model_size, parameter_count
from tests.helpers import TINY
from tests.sentences import refuses

PARAMETERS = 207_360  # of TINY


def test_a_copy_in_another_layout_does_not_count(tmp_path):
    shutil.copytree(TINY, tmp_path / "both")
    shutil.copy(tmp_path / "both" / SINGLE, tmp_path / "both" / "consolidated.safetensors")
    shutil.copytree(tmp_path / "both", tmp_path / "named")
    (tmp_path / "named" / SINGLE).rename(tmp_path / "named" / "weights.safetensors")
    for name in ("both", "named"):
        folder = str(tmp_path / name)
        assert parameter_count(folder) == PARAMETERS
        assert describe_model(folder) == describe_model(TINY)
    assert model_size(tmp_path / "both").parameters == PARAMETERS
    with refuses("E_MODEL_UNREADABLE"):  # as whoever loads it would say
        model_size(tmp_path / "named")


def test_a_model_without_attention_has_a_size_too(tmp_path):
    config = MambaConfig(vocab_size=600, hidden_size=16, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_tokenizer(TINY).save_pretrained(tmp_path)
    size = model_size(tmp_path)
    assert (size.keys, size.layers, size.hidden) == (0, 2, 16) and size.parameters > 600 * 16


def sharded(folder: Path) -> list[Path]:
    load_model(TINY)[0].save_pretrained(folder, max_shard_size="300KB")
    for file in Path(TINY).iterdir():
        if file.suffix != ".safetensors" and not (folder / file.name).exists():
            shutil.copy(file, folder)
    return sorted(folder.glob("*.safetensors"))


def test_shards_are_those_of_the_index(tmp_path):
    shards = sharded(tmp_path)
    assert len(shards) > 1 and weight_files(tmp_path, "m") == shards
    shutil.copy(shards[0], tmp_path / "left-over.safetensors")
    assert parameter_count(str(tmp_path)) == model_size(tmp_path).parameters == PARAMETERS


def test_a_model_without_all_of_its_shards_has_no_known_size(tmp_path):
    shards = sharded(tmp_path)
    shards[-1].unlink()
    assert parameter_count(str(tmp_path)) is None
    with refuses("E_WEIGHT_FILES_MISSING", names=(f"1 of {len(shards)} files", shards[-1].name)):
        model_size(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": 3}))
    with refuses("E_WEIGHT_INDEX", names=INDEX):
        model_size(tmp_path)
