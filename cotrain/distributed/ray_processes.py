"""Processes by Ray: every host is an actor. Ray is imported here alone, and only when it is asked for.

Every wait has a deadline; who is silent longer is killed. Ray restarts nothing by itself: it would bring a process back
without its state (``multi_process.py`` has what is done instead).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cotrain.core.errors import ConfigError, ProcessLost, first_line, install_extra
from cotrain.core.user_code import MODULE_PREFIX
from cotrain.core.verbosity import shows_all
from cotrain.distributed import ray_nodes
from cotrain.distributed.cluster_file import Cluster, gpus_wanted
from cotrain.distributed.ray_join import check_address, check_here, check_token, take_token

PATIENCE = 180.0  # seconds in which Ray is begun again where it is late
SETTINGS = {  # Ray's, where the user has not set them; it reads some of them when it is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 starves its processes next to others
}
SILENCE = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}  # Ray's own messages about lost processes; the run has its own


class RayProcess:
    """One actor. Implements ``contract.WatchedProcess``."""

    def __init__(self, what: str, actor: Any, deadline: float, *, here: bool) -> None:
        """``what``: as messages name it; ``deadline``: seconds for each answer; ``here``: on this machine."""
        self.what = what
        self.actor = actor
        self._deadline = deadline
        self._here = here
        self._pid_to_come = actor.pid.remote()
        self._pid = 0

    def send(self, method: str, *arguments: Any) -> Any:
        """Ray's name for an answer that is to come."""
        return self.actor.call.remote(method, *arguments)

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.wait(self.send(method, *arguments), method)

    def wait(self, reference: Any, method: str) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(reference, timeout=self._deadline)
        except RayTaskError as error:
            if isinstance(error.cause, RayError):  # an argument was lost on its way
                raise ProcessLost(
                    f"{self.what}: {first_line(error.cause)} during {method}", code="E_PROCESS_DIED"
                ) from error
            raise error.cause from error
        except GetTimeoutError as error:
            self.kill()
            raise ProcessLost(
                f"{self.what} did not answer {method} within {self._deadline:g} seconds and was killed",
                code="E_PROCESS_SILENT",
            ) from error
        except RayError as error:
            self.kill()
            raise ProcessLost(
                f"{self.what} is lost during {method}: {first_line(error)}", code="E_PROCESS_DIED"
            ) from error

    def is_done(self, reference: Any, seconds: float) -> bool:
        """Whether the answer of ``send``, or its error, is there within these seconds."""
        import ray

        return bool(ray.wait([reference], timeout=seconds, fetch_local=False)[0])

    def kill(self) -> None:
        """At once, whatever it does. Nothing where it is gone."""
        import ray

        if self._here and not self._pid:
            with suppress(Exception):  # gone, or not there yet
                self._pid = ray.get(self._pid_to_come, timeout=0)
        with suppress(Exception):  # whatever Ray says of one that is gone
            ray.kill(self.actor, no_restart=True)
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # one that is stopped does not hear Ray


class Hosting:
    """The actor: it keeps a host, which may be a class that Ray would take for an asynchronous one."""

    def __init__(self, host: type, settings: tuple[Any, ...]) -> None:
        self._host = host(*settings)

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._host, method)(*arguments)


class RayLauncher:
    """Implements ``hosted_policies.Launcher``."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises ConfigError where Ray is not installed."""
        for name, value in (SETTINGS if shows_all() else SETTINGS | SILENCE).items():
            os.environ.setdefault(name, value)
        try:
            import ray  # noqa: F401  this is what it is here for
        except ImportError:
            raise ConfigError(
                f"--backend ray: Ray is not installed here; {install_extra('ray')}", code="E_RAY_NOT_INSTALLED"
            ) from None
        self.cluster = cluster
        self._ours = False  # did it begin or join Ray?
        self._looked = False  # at the machines of a Ray that was joined
        self._named = ""  # as messages name the Python of vLLM, where there is to be one

    @property
    def here(self) -> bool:
        return self.cluster.address is None

    @property
    def deadline(self) -> float:
        return self.cluster.deadline

    def start(self) -> None:
        """Nothing where it has been started. Raises ConfigError."""
        self._ours = start_ray(self.cluster) or self._ours
        _carry_user_code()
        if self.cluster.address is None or self._looked:
            return
        where = f"at {self.cluster.address}"
        ray_nodes.await_gpus(gpus_wanted(self.cluster), where)
        if self._named:
            ray_nodes.check_python(inspect_remote_python(self.cluster.engine_python, where), self._named)
        self._looked = True

    def check_foreign(self, where: str) -> None:
        """The Python of vLLM must have what it needs, as it is here: raises ConfigError, now where processes begin on
        this machine, else at the start. ``where``: as messages name the cluster."""
        self._named = f"{where}: engine.python"
        if self.cluster.address is None:
            ray_nodes.check_python(ray_nodes.inspect_python(self.cluster.engine_python), self._named)

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> RayProcess:
        import ray

        actor: Any = ray.remote(Hosting).options(**self.actor_options(what, host))
        if self.cluster.gpus_of(what, host.__name__):
            # Ray shows the process its own GPUs alone: its only one is cuda:0, whichever it is.
            settings = tuple(map(_without_index, settings))
        return RayProcess(what, actor.remote(host, settings), self.deadline, here=self.here)

    def actor_options(self, what: str, host: type) -> dict[str, Any]:
        """Ray's options for the actor of a host."""
        gpus = self.cluster.gpus_of(what, host.__name__)
        python = self.cluster.pythons.get(host.__name__)
        elsewhere = {"runtime_env": {"py_executable": python}} if python else {}
        return {"num_cpus": 0, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0, **elsewhere}

    def stop(self) -> None:
        import ray

        if self._ours and ray.is_initialized():
            ray.shutdown()
        self._ours = False

    def describe(self) -> dict[str, Any]:
        return {"kind": "ray"}


def _without_index(setting: Any) -> Any:
    """A device "cuda:N" as "cuda"; any other setting as it is."""
    if isinstance(setting, str) and setting.startswith("cuda"):
        return "cuda"
    return setting


def inspect_remote_python(python: str, where: str, patience: float = PATIENCE) -> ray_nodes.PythonInfo:
    """The versions of a Python on one of the machines. Raises ConfigError where none of them answers in time."""
    import ray
    from ray.exceptions import RayError

    reference = ray.remote(ray_nodes.inspect_python).options(num_cpus=0, max_retries=0).remote(python)
    try:
        python_info: ray_nodes.PythonInfo = ray.get(reference, timeout=patience)
    except RayError as error:  # GetTimeoutError is one
        raise ConfigError(
            f"Ray {where}: no machine said within {patience:g} seconds what {python} has ({first_line(error)}); see "
            "`cotrain doctor --cluster`",
            code="E_RAY_SILENT",
        ) from error
    return python_info


def start_ray(cluster: Cluster) -> bool:
    """Join the cluster, or begin Ray on this machine; False where this process has joined one already. Raises
    ConfigError."""
    import ray

    if ray.is_initialized():
        return False
    if cluster.address is None:
        check_here(cluster)
        take_token()
    else:
        check_address(cluster.address)
        check_token(cluster.address)

    log_options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.DEBUG if shows_all() else logging.ERROR,
    }
    local_options: dict[str, Any] = {
        "num_cpus": cluster.cpus,
        "object_store_memory": cluster.object_store_mb * 2**20,
        "include_dashboard": False,
    }
    deadline = time.monotonic() + min(cluster.deadline, PATIENCE)
    while True:
        try:
            with _own_sigterm():
                ray.init(cluster.address or "local", **({} if cluster.address else local_options), **log_options)
            return True
        except Exception as error:
            ray.shutdown()  # what of it began
            # Ray waits 30 seconds; a busy machine needs more
            timed_out = "timed out" in str(error) and cluster.address is None
            if not timed_out or time.monotonic() > deadline:
                where = f"at {cluster.address}" if cluster.address else "here"
                raise ConfigError(
                    f"Ray does not start {where}: {_error_text(error)}", code="E_RAY_NOT_STARTED"
                ) from error


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray would end the command at once where it is asked to stop; the run saves first (``trainer/failures.py``)."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _carry_user_code() -> None:
    """Send the definitions of a user's own file along: other processes do not find them by name."""
    from ray import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(MODULE_PREFIX):
            cloudpickle.register_pickle_by_value(module)


def _error_text(error: BaseException) -> str:
    """Which versions differ is below the first line."""
    text = str(error)
    return " ".join(text.split()) if "Version mismatch" in text else first_line(error)
