"""``cotrain serve`` on a real port, asked by the clients of others."""

import json
import threading

import pytest
import uvicorn

from cotrain.learner.logprobs import Scorer
from cotrain.serving.app import make_application, open_listener


@pytest.fixture(scope="module")
def url(served):
    """A real server on a free port."""
    listener = open_listener("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_application(served), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


@pytest.mark.whole
def test_the_openai_client(url, task):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    assert "solver" in [model.id for model in client.models.list()]
    messages = [{"role": "user", "content": task.prompt}]
    whole = client.chat.completions.create(model="solver", messages=messages, temperature=0, logprobs=True)
    assert whole.choices[0].message.content.startswith("<step>") and whole.choices[0].logprobs.content[0].logprob <= 0
    stream = client.chat.completions.create(model="solver", messages=messages, temperature=0, stream=True)
    said = "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices)
    assert said == whole.choices[0].message.content
    scored = client.completions.create(
        model="policy/reference", prompt="There are", echo=True, max_tokens=1, logprobs=1
    )
    assert scored.choices[0].text.startswith("There are") and scored.choices[0].logprobs.token_logprobs[0] is None
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="solver", messages=messages, temperature=-1)
    assert raised.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="slover", messages=messages)
    assert raised.value.code == "model_not_found" and "'solver'" in raised.value.message


@pytest.mark.whole
def test_lm_evaluation_harness(url, served, tmp_path):
    """Log-likelihoods through ``local-completions`` are those of the model; ``local-chat-completions`` generates."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    served.renderer_of(served.models["policy/reference"]).tokenizer.save_pretrained(tmp_path)
    lm = LocalCompletionsAPI(
        base_url=f"{url}/completions", model="policy/reference", tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
        max_length=1024, batch_size=2,
    )  # fmt: skip
    pairs = [("There are 12 pears.", " 3 pears are eaten."), ("A", "BC"), ("Tom has", " 4 pears.")]

    def instances(kind, arguments):
        return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]

    found = lm.loglikelihood(instances("loglikelihood", pairs))
    renderer, model = served.trainer.policies["reference"].renderer, served.trainer.policies["reference"].model
    for (context, rest), (value, _) in zip(pairs, found, strict=True):
        before, after = renderer.encode(context), renderer.encode(context + rest)
        (expected,) = Scorer(model).logprobs([(before, after[len(before) :])])
        assert value == pytest.approx(float(expected.sum()), abs=1e-3)
    chat = LocalChatCompletion(base_url=f"{url}/chat/completions", model="solver", max_gen_toks=160)
    problem = json.dumps([{"role": "user", "content": served.trainer.recipe.tasks.get("validation", 3).prompt}])
    from lm_eval.models.api_models import JsonChatStr

    (said,) = chat.generate_until(instances("generate_until", [(JsonChatStr(problem), {"until": ["</answer>"]})]))
    assert said.startswith("<step>") and "</answer>" not in said
