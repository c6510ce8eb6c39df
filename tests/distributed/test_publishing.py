"""The self-test at the start: engines over copies of the models, some of which take weights wrongly."""

import copy

import pytest
import torch

from cotrain.config.policies import frozen, trainable
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.weight_sync_check import check_publishing
from cotrain.inference.local import LocalEngine
from tests.helpers import TINY
from tests.sentences import refuses


class Copying(LocalEngine):
    """Copies of the models. ``left_out``: parts of names whose new weights it does not take."""

    left_out: tuple[str, ...] = ()

    def __init__(self, handles, device):
        self.handles = handles
        self.copies = {name: copy.deepcopy(handle.model) for name, handle in handles.items()}
        super().__init__(self.copies)

    @torch.no_grad()
    def publish(self, policy, version):
        own = dict(self.copies[policy].named_parameters())
        for name, weight in self.handles[policy].weights():
            if not any(part in name for part in self.left_out):
                own[name].copy_(weight)
        super().publish(policy, version)


class Stale(Copying):
    left_out = ("",)


class OldEmbedding(Copying):
    left_out = ("embed_tokens",)


class OneOldLayer(Copying):
    left_out = ("layers.1.mlp.down_proj",)


class OldOutput(Copying):
    """As a tied output layer that is kept apart: inputs are new, outputs are not."""

    def __init__(self, handles, device):
        super().__init__(handles, device)
        for model in self.copies.values():
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


class Forgetful(Copying):
    """Once it has had new weights, it does not take the old ones back."""

    taken = False

    def publish(self, policy, version):
        told = dict(self.handles[policy].weights())
        name, weight = next(iter(told.items()))
        changed = not torch.equal(weight, dict(self.copies[policy].named_parameters())[name])
        if not (self.taken and changed):
            super().publish(policy, version)
        self.taken = self.taken or changed


def checked(engine):
    torch.set_num_threads(1)
    backend = LocalBackend(engine=engine)
    handles = backend.open({"generator": trainable(TINY), "reference": frozen(TINY)}, seed=0)
    before = {name: weight.clone() for name, weight in handles["generator"].tensors().items()}
    try:
        found = check_publishing(list(handles.values()), [backend.engine], backend.publish)
    finally:
        after = handles["generator"].tensors()
        assert all(torch.equal(after[name], weight) for name, weight in before.items())
    return found


@pytest.mark.whole
def test_weights_that_arrive_pass_and_are_as_before():
    generator, start = checked(Copying)
    assert generator.before < 1e-4 and generator.after < 1e-4 and generator.change > 0.3
    assert start.before < 1e-4 and start.after is None


@pytest.mark.whole
@pytest.mark.parametrize("engine", [Stale, OldEmbedding, OneOldLayer, OldOutput])
def test_weights_that_do_not_arrive_are_refused(engine):
    with refuses("E_WEIGHTS_NOT_SYNCED", names="policy 'generator'") as told:
        checked(engine)
    assert "\n" not in str(told.value)


@pytest.mark.whole
def test_weights_that_are_not_put_back_are_refused():
    with refuses("E_WEIGHTS_NOT_SYNCED", names=("policy 'generator'", "the same bits")):
        checked(Forgetful)


@pytest.mark.whole
def test_a_policy_that_is_moved_by_anothers_weights_is_refused():
    class Leaking(Copying):
        @torch.no_grad()
        def publish(self, policy, version):
            super().publish(policy, version)
            name, weight = next(iter(self.handles["generator"].weights()))
            dict(self.copies["reference"].named_parameters())[name].copy_(weight)

    with refuses("E_WEIGHTS_NOT_SYNCED", names=("policy 'reference'", "weights of 'generator'")):
        checked(Leaking)


@pytest.mark.whole
def test_another_model_than_the_learners_is_refused():
    class Other(Copying):
        def __init__(self, handles, device):
            super().__init__(handles, device)
            with torch.no_grad():
                for weight in self.copies["reference"].parameters():
                    weight += 0.3 * weight.std(correction=0) * torch.randn(weight.shape)

    with refuses("E_WEIGHTS_NOT_SYNCED", names=("policy 'reference'", "at the start", "0.2 at most")):
        checked(Other)
