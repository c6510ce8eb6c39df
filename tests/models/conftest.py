import pytest

from cotrain.models.from_scratch import new_model, small_config
from cotrain.models.load import save_model
from cotrain.pretraining.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(["There are 12 apples. <step> pears= apples+4=12+4=16</step>"] * 3, vocab_size=290)


@pytest.fixture
def model(tokenizer):
    return new_model(small_config(len(tokenizer), depth=1, width=16, heads=2, kv_heads=1, feed_forward=24), seed=3)


@pytest.fixture
def directory(model, tokenizer, tmp_path):
    save_model(model, tokenizer, tmp_path / "model")
    return tmp_path / "model"
