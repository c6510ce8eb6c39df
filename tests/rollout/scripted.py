"""An engine without a model, for tests of what is said around it."""

from __future__ import annotations

import math

from cotrain.core.errors import TooLong
from cotrain.core.types import Completion, Grade
from cotrain.prompts.decoding import stop_in
from tests.helpers import CharRenderer

SOLVED = "<step>2 * 3 = 6</step><step>6 + 1 = 7</step><answer>7</answer>"


class Always:
    def grade(self, task, text):
        return Grade(value=True)

    def grade_steps(self, task, steps):
        return None


class Scripted:
    """The solver solves; the verifier says what a function makes of (prompt, outputs that it holds). 0.9 a token."""

    def __init__(self, say, context=10**9):
        self.say, self.context, self.prompts = say, context, []

    async def sample(self, request):
        prompt = CharRenderer().decode(request.prompt_ids)
        if len(prompt) > self.context:
            raise TooLong("exceed the context")
        if request.policy == "v":
            self.prompts.append(prompt)
        said = SOLVED if request.policy == "s" else self.say(prompt, prompt.count("\n</ran id="))
        found = stop_in(said, request.sampling.stop)
        ids = (*CharRenderer().encode(said), 0) if found is None else CharRenderer().encode(said[: found[1]])
        ids = ids[: request.sampling.max_tokens]
        spread = (math.log(0.9),) * len(ids)
        return Completion(token_ids=ids, logprobs=spread, finish="stop", policy=request.policy, version=0)

    def advance(self):
        return False

    def publish(self, policy, version): ...

    def counts(self):
        return {}
