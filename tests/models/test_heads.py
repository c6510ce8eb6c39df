import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from cotrain.models.heads import classifier_of, rating_by_words, reward_model, value_model
from cotrain.models.load import load_model, save_model
from tests.sentences import refuses


def test_a_fresh_critic_says_zero_and_learns(directory):
    critic = value_model(directory)
    ids = torch.tensor([[1, 9, 8, 7], [1, 5, 6, 7]])
    values = critic(ids)
    assert values.shape == (2, 4) and values.dtype == torch.float32 and not values.any()
    (values - 1).pow(2).sum().backward()
    assert critic.head.weight.grad.abs().sum() > 0 and critic.head.bias.grad.item() == pytest.approx(-16.0)


def test_the_body_is_the_policys(directory):
    policy, _ = load_model(directory)
    critic = value_model(directory)
    ids = torch.tensor([[1, 9, 8, 7]])
    assert torch.equal(critic.body(ids).last_hidden_state, policy.model(ids).last_hidden_state)
    assert not any("lm_head" in name for name, _ in critic.named_parameters())


@pytest.mark.whole
def test_values_do_not_see_the_future_and_depend_on_the_seed(directory):
    one, same, other = value_model(directory, 1, 0.1), value_model(directory, 1, 0.1), value_model(directory, 2, 0.1)
    short, long = torch.tensor([[1, 9, 8]]), torch.tensor([[1, 9, 8, 7]])
    assert torch.allclose(one(short), one(long)[:, :3], atol=1e-6)
    assert torch.equal(one(long), same(long)) and not torch.equal(one(long), other(long))


@pytest.mark.whole
def test_a_reward_model_of_transformers_keeps_its_head(directory, tmp_path):
    fresh = reward_model(directory)
    ids = torch.tensor([[1, 9, 8, 7]])
    assert fresh.head.bias is None and not fresh(ids).any()
    weight = torch.linspace(-1, 1, fresh.head.weight.numel())[None]
    _, tokenizer = load_model(directory)
    save_model(classifier_of(fresh.body, weight, 0), tokenizer, tmp_path)
    scorer = reward_model(tmp_path)
    assert torch.equal(scorer.head.weight, weight)
    whole = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert scorer(ids)[0, -1].item() == pytest.approx(whole(ids).logits.item(), abs=1e-5)
    with refuses("E_MODEL_DOES_NOT_SPEAK"):
        load_model(tmp_path)
    several = json.loads((tmp_path / "config.json").read_text()) | {"id2label": {"0": "a", "1": "b"}}
    (tmp_path / "config.json").write_text(json.dumps(several))
    with refuses("E_WEIGHTS_MISFIT"):
        reward_model(tmp_path)


def test_a_language_model_rates_by_two_words(directory):
    model, tokenizer = load_model(directory)
    made = rating_by_words(model, tokenizer, "yes", "no")
    ids = torch.tensor([tokenizer("12 pears").input_ids])
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("yes", "no"))
    logits = model(ids).logits[0, -1]
    assert made(input_ids=ids).logits.item() == pytest.approx((logits[yes] - logits[no]).item(), abs=1e-5)
    with refuses("E_VERDICT_WORDS_ALIKE"):
        rating_by_words(model, tokenizer, "yes", "yes")


def test_missing_model(tmp_path):
    with refuses("E_MODEL_NOT_FOUND"):
        value_model(tmp_path / "nothing")
