import pytest

from cotrain.core.seeding import rng_of
from cotrain.models.from_scratch import new_model, small_config
from cotrain.pretraining.corpora import procedural_corpus
from cotrain.pretraining.tokenizer import train_tokenizer

WORDS = ("ab", "cde", "7", "+", "fg hi", "12")


def sentence(index):
    rng = rng_of("sentence", index)
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 30)))


def conversation(index):
    rng = rng_of("conversation", index)
    question, answer = sentence(2 * index), rng.choice(WORDS)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer([sentence(i) for i in range(50)], vocab_size=285)


@pytest.fixture
def config(tokenizer):
    return small_config(len(tokenizer), depth=1, width=16, heads=2, kv_heads=1, feed_forward=24)


@pytest.fixture
def model(config):
    return new_model(config, seed=3)


@pytest.fixture
def sentences():
    return procedural_corpus("sentences", sentence)


@pytest.fixture
def conversations():
    return procedural_corpus("conversations", conversation)
