"""One thread for every test: the models are tiny, tests run beside each other, and sums are the same everywhere."""

import gc
import os
import shutil
import signal
import tempfile

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="cotrain-tests-")  # what tests trust, no user does
os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported, and for the processes that tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background: tests of Ctrl-C would wait for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_unconfigure():
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


def pytest_itemcollected(item):
    """What is left for the night is left out at every save and before a landing too: it is ``whole`` as well."""
    if item.get_closest_marker("nightly") and not item.get_closest_marker("whole"):
        item.add_marker(pytest.mark.whole)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """The collector of garbage rests while tests are collected, and never looks at what is there at the end.

    Pytest makes millions of nodes of syntax trees for the assertions of all files; looking through them again and again
    was a third of the time. What was imported stays for good: to look through it takes most of a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_make_parametrize_id(config, val, argname):
    """Bytes name no test: a packed file contains the time at which it was packed, and processes that share the tests
    must find the same ones."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Commands called within a test may set another number, and another level; the next test does not inherit them."""
    import torch  # here, since the process that only hands out the tests needs none

    from cotrain.core.verbosity import set_level

    torch.set_num_threads(1)
    set_level(None)


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """A model that is not one of the package's own: the tiny one without its mark."""
    from cotrain.rollout.common_roles import FORMAT_MARK
    from tests.helpers import TINY

    path = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(TINY, path)
    (path / FORMAT_MARK).unlink()
    return str(path)
