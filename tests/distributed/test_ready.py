"""What a run by Ray must find, told in one line before anything is loaded: ports, memory, GPUs, other machines."""

import json
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import torch

from cotrain.cli.main import main
from cotrain.distributed import ranks, ray_join, ray_nodes
from cotrain.distributed.cluster_file import Cluster, check_world
from cotrain.distributed.engine_host import EngineHost, VllmHost
from cotrain.distributed.ranks import RankHost
from cotrain.distributed.ray_join import HERE, PREFACE, check_address, check_here
from cotrain.distributed.ray_nodes import await_gpus, check_gpus, machine_differences, machine_problems
from cotrain.distributed.ray_processes import RayLauncher, _error_text
from cotrain.distributed.remote_policies import LearnerHost
from cotrain.runs.memory_plan import ProcessMemory, check_memory, object_store_note
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

GIB = 2**30


@contextmanager
def listening(answer: bytes | None, *, piece: int = 64):
    """A port at which this is answered, so many bytes at a time; None: nothing, for as long as it is open."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            try:
                line, _ = server.accept()
            except OSError:
                return
            with line:
                line.recv(64)
                if answer is None:
                    time.sleep(1.0)
                else:
                    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    with suppress(OSError):  # who asked has heard enough
                        answered(line, answer, piece)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def answered(line, answer, piece):
    for start in range(0, len(answer), piece):
        line.sendall(answer[start : start + piece])
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def told(code: str, call, *arguments, **settings) -> None:
    """This call is refused in one line, with this code and these names."""
    with refuses(code) as error:
        call(*arguments, **settings)
    assert "\n" not in str(error.value)


# -- ports


def test_an_address_at_which_nothing_answers():
    port = free_port()
    told(
        f"E_RAY_NOT_REACHED: 127.0.0.1:{port} | connection refused | --port {port}", check_address, f"127.0.0.1:{port}"
    )


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_an_address_that_another_program_has(answer):
    with listening(answer) as port:
        told(f"E_RAY_PORT_TAKEN: 127.0.0.1:{port}", check_address, f"127.0.0.1:{port}", 0.3)


def test_an_address_at_which_http2_is_spoken_is_tried():
    with listening(PREFACE[-9:]) as port:
        check_address(f"127.0.0.1:{port}")
    with listening(PREFACE[-9:], piece=2) as port:
        check_address(f"127.0.0.1:{port}")
    check_address("auto")
    told("E_RAY_PORT: 70000 | 65535", check_address, "127.0.0.1:70000")


def test_a_port_in_use_for_the_ray_that_begins_here():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        code = f"E_RAY_PORT_TAKEN: {HERE} = {port} | address already in use"
        told(code, check_here, Cluster(object_store_mb=80), {HERE: str(port)})
    check_here(Cluster(object_store_mb=80), {HERE: str(port)})
    check_here(Cluster(object_store_mb=80), {})


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_whose_name_is_too_long_for_sockets(name):
    """Batch systems have such a TMPDIR."""
    folder = "/scratch-of-a-job/" + "x" * 100
    code = f"E_RAY_FOLDER_TOO_LONG: {folder} | RAY_TMPDIR=/tmp"
    told(code, check_here, Cluster(object_store_mb=80), {name: folder})
    check_here(Cluster(object_store_mb=80), {"TMPDIR": folder, "RAY_TMPDIR": "/tmp"})


def test_versions_that_differ_are_named():
    said = "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\nThis process"
    assert _error_text(RuntimeError(said)) == " ".join(said.split())
    assert _error_text(RuntimeError("one\ntwo")) == "one"


# -- memory


def test_an_object_store_beyond_the_memory_of_the_machine():
    code = "E_OBJECT_STORE_TOO_LARGE: object_store_mb = 1000000000 | this machine"
    told(code, check_here, Cluster(object_store_mb=10**9), {})


PROCESSES = (
    ProcessMemory(what="the command", memory={}, beside={"the program itself": GIB}),
    ProcessMemory(
        what="the learners", memory={"weights": 4 * GIB, "optimiser": 8 * GIB}, beside={"the program itself": GIB}
    ),
    ProcessMemory(what="the engine's process", memory={"weights": 4 * GIB}, beside={"the program itself": GIB}),
)


def having(*sizes, gpus=()):
    return [{"name": f"node-{i}", "memory": size * GIB, "gpus": [("card", g * GIB) for g in gpus]} for i, size in
            enumerate(sizes)]  # fmt: skip


def test_processes_that_need_more_memory_than_there_is():
    check_memory(PROCESSES, having(19), "cpu", "this machine")
    code = "E_MEMORY_FOR_POLICIES: the learners: about 13.00 GiB | this machine has 12.00 GiB"
    told(code, check_memory, PROCESSES, having(12), "cpu", "this machine")
    code = "E_MEMORY_FOR_POLICIES: all processes: about 19.00 GiB | the command 1.00 GiB, the learners 13.00 GiB"
    told(code, check_memory, PROCESSES, having(18), "cpu", "this machine")
    check_memory(PROCESSES, having(13, 6), "cpu", "the Ray")
    told("E_MEMORY_FOR_POLICIES: the Ray has 12.00 GiB", check_memory, PROCESSES, having(12, 12), "cpu", "the Ray")
    check_memory(PROCESSES, [{"name": "silent", "error": "no answer"}], "cpu", "the Ray")


def test_processes_that_need_more_memory_than_a_gpu_has():
    check_memory(PROCESSES, having(3, gpus=(16,)), "cuda", "this machine")
    code = "E_MEMORY_FOR_POLICIES: GPU memory of the learners: about 12.00 GiB | this machine has 8.00 GiB"
    told(code, check_memory, PROCESSES, having(3, gpus=(8, 8)), "cuda", "this machine")
    code = "E_MEMORY_FOR_POLICIES: all processes: about 3.00 GiB"
    told(code, check_memory, PROCESSES, having(2, gpus=(16,)), "cuda", "this machine")


def test_an_object_store_that_weights_do_not_fit_into_is_noted():
    assert "weights of up to 4.00 GiB pass through an object store of 1024 MB" in object_store_note(
        PROCESSES, Cluster()
    )
    assert object_store_note(PROCESSES, Cluster(object_store_mb=5000)) is None


# -- GPUs


def test_gpus_that_there_are_not():
    told("E_TOO_FEW_GPUS: [learner] gpus = 1 | none here", check_world, Cluster(gpus={"LearnerHost": 1.0}), "cpu", 1)
    wanted = [("learner", 1.0), ("engine", 0.5)]
    check_gpus(wanted, [1.0, 1.0], "here")
    told("E_TOO_FEW_GPUS: 1.5 GPUs | 1 here", check_gpus, wanted, [1.0], "here")
    told("E_TOO_FEW_GPUS: [engine] gpus = 2 | 1 at the Ray", check_gpus, [("engine", 2.0)], [1.0, 1.0], "at the Ray")


def test_gpus_may_join_late(monkeypatch):
    late = [[], [], [{"Resources": {"GPU": 1.0}}]]
    monkeypatch.setattr(ray_nodes, "live_nodes", lambda: late.pop(0))
    await_gpus([("learner", 1.0)], "at the Ray", lambda seconds: None)
    assert not late


# -- other machines


def test_a_machine_that_says_nothing_is_named():
    silent = {"name": "10.0.0.2", "error": "no answer within 300 seconds"}
    assert machine_problems(silent, {}, None) == ["10.0.0.2: no answer within 300 seconds"]
    assert machine_differences([silent, silent]) == []


HERE_IS = {"python": "3.11.7", "cotrain": "0.1.0", "code": "a", "torch": "2.13.0", "transformers": "5.23.0"}


def having_versions(name="10.0.0.2", engine=None, **versions):
    return {"name": name, "python": HERE_IS | versions, "engine": engine, "weights": {}}


@pytest.mark.parametrize(
    ("there", "line"),
    [
        ({"torch": "2.12.0"}, "10.0.0.2 has torch 2.12.0, this machine torch 2.13.0; expected the same"),
        ({"python": "3.12.1"}, "10.0.0.2 has python 3.12.1, this machine python 3.11.7; expected the same"),
        (
            {"code": "b"},
            "10.0.0.2 has cotrain 0.1.0 (files b), this machine cotrain 0.1.0 (files a); expected the same",
        ),
        ({"ray": "2.60.0"}, "10.0.0.2 has ray 2.60.0, this machine no ray; expected the same"),
        ({"vllm": "0.32.0"}, None),  # does not count in the command's own Python
        ({}, None),
    ],
)  # fmt: skip
def test_only_versions_that_differ_are_named(there, line):
    assert machine_problems(having_versions(**there), HERE_IS, None) == ([line] if line else [])


def test_versions_of_vllm_that_differ_are_named():
    one, two = ({"python": "3.11.7", "vllm": version} for version in ("0.32.0", "0.31.1"))
    assert machine_differences([having_versions("a", one), having_versions("b", one)]) == []
    assert machine_differences([having_versions("a", one), having_versions("b", two)]) == [
        "vLLM's Python on b has vllm 0.31.1, that on a vllm 0.32.0; expected the same"
    ]


# -- a token


def asking(monkeypatch, answers):
    asked = []

    def asks(address, environment, patience):
        asked.append(dict(environment))
        return answers[len(asked) - 1]

    monkeypatch.setattr(ray_join, "_asks_for_token", asks)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return asked


def test_a_ray_that_asks_for_no_token(monkeypatch, tmp_path):
    asked = asking(monkeypatch, [False])
    ray_join.check_token("127.0.0.1:6379")
    ray_join.check_token("auto")
    ray_join.check_token("ray://name:1")
    assert asked == [{}] and "RAY_AUTH_MODE" not in os.environ


def test_a_token_that_is_missing_or_another_one_or_not_to_be_used(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    asking(monkeypatch, [True])
    told(f"E_RAY_TOKEN: none here | ~/.ray/auth_token | {tmp_path}", ray_join.check_token, "127.0.0.1:6379")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("00")
    asking(monkeypatch, [True, True])
    told(f"E_RAY_TOKEN: refuses that of {tmp_path}", ray_join.check_token, "127.0.0.1:6379")
    asking(monkeypatch, [True])
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    told("E_RAY_TOKEN: RAY_AUTH_MODE is 'disabled'", ray_join.check_token, "127.0.0.1:6379")


def test_a_ray_that_begins_here_has_its_own_token_unless_the_user_has_set_one(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "set")
        ray_join.take_token()
        assert {**os.environ}[name] == "set"
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    ray_join.take_token()
    first = os.environ["RAY_AUTH_TOKEN"]
    ray_join.take_token()
    assert os.environ["RAY_AUTH_TOKEN"] == first and len(first) == 64 and "RAY_AUTH_MODE" not in os.environ


# -- by the command


def refused(capsys, tmp_path, code, text, *flags):
    (tmp_path / "cluster.toml").write_text(text)
    out = tmp_path / "run"
    given = ["run", "grpo", "--backend", "ray", "--cluster", str(tmp_path / "cluster.toml"), "--device", "cpu",
             "--model", TINY, "--out", str(out), *flags]  # fmt: skip
    command_refuses(given, code, capsys)
    assert not out.exists()


@pytest.mark.whole
def test_the_command_tells_before_anything_is_loaded(capsys, tmp_path, monkeypatch):
    port = free_port()
    refused(capsys, tmp_path, f"E_RAY_NOT_REACHED: {port}", f'address = "127.0.0.1:{port}"')
    refused(capsys, tmp_path, "E_OBJECT_STORE_TOO_LARGE: this machine has", "object_store_mb = 1000000000")
    refused(capsys, tmp_path, "E_TOO_FEW_GPUS: [learner] gpus = 99", "[learner]\ngpus = 99")
    with socket.create_server(("", 0)) as server:
        monkeypatch.setenv(HERE, str(server.getsockname()[1]))
        refused(capsys, tmp_path, f"E_RAY_PORT_TAKEN: {HERE}", "")
    monkeypatch.delenv(HERE)
    monkeypatch.setattr(ray_nodes, "memory_here", lambda: GIB // 4)
    refused(capsys, tmp_path, "E_MEMORY_FOR_POLICIES: the learners", "object_store_mb = 80")


@pytest.mark.whole
def test_a_dry_run_tells_the_memory_of_each_process(capsys, tmp_path):
    flags = ["run", "grpo", "--model", TINY, "--out", str(tmp_path / "run"), "--dry-run"]
    assert main([*flags, "--backend", "ray", "--world", "2"]) == 0
    said = capsys.readouterr().out
    for who in ("the command", "the learners (rank 1 of 2)", "the engine's process", "Ray"):
        assert f"# memory of {who}, estimated: " in said
    assert "memory on cpu" not in said
    assert main(flags) == 0
    assert "# memory on cpu, estimated: " in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_ranks_share_what_learners_hold(capsys, tmp_path):
    def learners(world):
        flags = [
            "--backend",
            "ray",
            "--cluster",
            str(tmp_path / "two.toml"),
            "--world",
            str(world),
            "--dry-run",
            "--json",
        ]
        assert main(["run", "grpo", "--model", TINY, *flags, "--dry-run", "--out", str(tmp_path / "run")]) == 0
        found = json.loads(capsys.readouterr().out)["estimate"]["processes"]
        return [process["memory"] for process in found if process["what"].startswith("the learners")]

    (tmp_path / "two.toml").write_text("cpus = 2", encoding="utf-8")  # also on a machine of one
    torch.set_num_threads(1)
    (one,), two = learners(1), learners(2)
    assert len(two) == 2
    for mine in two:
        assert mine["optimiser"] == pytest.approx(one["optimiser"] / 2, abs=1)
        assert mine["weights"] == pytest.approx(one["weights"] / 2, abs=1)


class Asked:
    """In the place of an actor of Ray: the host, and what it was given."""

    def __init__(self, made):
        self.made, self.pid = made, self

    def options(self, **_):
        return self

    def remote(self, *given):
        self.made += [given] if given else []
        return self


def test_who_is_given_gpus_of_its_own_counts_them_from_0(monkeypatch):
    """Ray shows a process no others: there is no cuda:1 where it has one."""
    made = []
    launcher = RayLauncher(Cluster(gpus={"LearnerHost": 1.0, "EngineHost": 0.0, "VllmHost": 0.5}))
    monkeypatch.setattr(launcher, "start", lambda: None)
    monkeypatch.setattr("ray.remote", lambda host: Asked(made))
    for device in ("cuda:1", "cpu"):
        for host in (LearnerHost, EngineHost, VllmHost):
            launcher.begin("it", host, ({}, 0, device, 1))
    assert [settings[2] for _, settings in made] == ["cuda", "cuda:1", "cuda", "cpu", "cpu", "cpu"]
    assert all(settings[:2] == ({}, 0) and settings[3] == 1 for _, settings in made)


def test_a_rank_counts_its_gpus_from_0(monkeypatch):
    joined = []
    monkeypatch.setattr(ranks.dist, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(ranks.dist, "init_process_group", lambda kind, **_: joined.append(kind))
    monkeypatch.setattr(ranks, "LearnerHost", lambda policies, seed, device, *_: joined.append(device))
    for device in ("cuda:1", "cpu"):
        RankHost(1, 2, False, 1.0).join((HERE, 1), {}, {}, 0, device, 1)
    assert joined == ["nccl", "cuda", "gloo", "cpu"]
