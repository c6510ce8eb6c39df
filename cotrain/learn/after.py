"""What may be done to samples once their advantages are known: functions, composed in ``PolicyGradient.after``.

Each takes samples and hands back those to learn from, with the number that it left out by reason.
``learn/subsample.py`` has another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cotrain.core.errors import ConfigError
from cotrain.learn.contract import Sample

After = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, int]]]


def drop_flat_groups(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Groups in which no token has an advantage teach nothing and would cost a forward pass. The totals of the
    normaliser then count the others alone, and the KL term does not see them."""
    alive = {sample.group for sample in samples if bool(sample.advantages.any())}
    kept = [sample for sample in samples if sample.group in alive]
    return kept, {"zero_spread": len(samples) - len(kept)} if len(kept) < len(samples) else {}


@dataclass(frozen=True, slots=True)
class TrainWithPromptOf:
    """Samples of other roles are learned as answers to what ``role`` was asked in their group: refinements as if there
    had been no critique."""

    role: str

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        prompts = {sample.group: sample.prompt_ids for sample in samples if sample.role == self.role}
        lonely = [sample.key for sample in samples if sample.group not in prompts]
        if lonely:
            raise ConfigError(
                f"sample {lonely[0]} is to be learned with the prompt of role {self.role!r}, but that role has none "
                "in its "
                "group; give it the group of one that has, as in group=solution.group"
            )
        return [self._moved(sample, prompts[sample.group]) for sample in samples], {}

    def _moved(self, sample: Sample, prompt_ids: tuple[int, ...]) -> Sample:
        return sample if sample.role == self.role else replace(sample, prompt_ids=prompt_ids, off_policy=True)
