"""What a cluster file may say, and what is said of one that is wrong: one line, before anything is loaded."""

from dataclasses import replace

import pytest
import torch

from cotrain.config.policies import trainable
from cotrain.distributed.cluster_file import Cluster, check_world, read_cluster_file, with_gpu_check
from cotrain.distributed.placement import VllmPlacement
from cotrain.inference.vllm import VllmSettings, card_arguments
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

WHOLE = """
address = "10.0.0.1:6379"
cpus = 8
object_store_mb = 4096
deadline_seconds = 90

[learner]
gpus = 1

[engine]
replicas = 3
gpus = 0.5
python = "/env/bin/python"
cache_mb = 512
context = 4096
"""


def written(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return str(path)


def test_a_whole_file(tmp_path):
    expected = Cluster(
        address="10.0.0.1:6379",
        cpus=8,
        object_store_mb=4096,
        deadline=90.0,
        replicas=3,
        gpus={"LearnerHost": 1.0, "RankHost": 1.0, "EngineHost": 0.5, "VllmHost": 0.5},
        pythons={"VllmHost": "/env/bin/python"},
        vllm=VllmSettings(cache_mb=512, context=4096, rows=256),
    )
    assert read_cluster_file(written(tmp_path, WHOLE)) == expected
    assert read_cluster_file("local").address is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("adress = 'auto'", "E_CLUSTER_FILE_KEY: 'adress' | 'address'"),
        ("[engine]\ngpu = 1", "E_CLUSTER_FILE_KEY: 'gpu' | 'gpus'"),
        ("cpus = 0", "E_CLUSTER_FILE_VALUE: cpus | a whole number"),
        ("cpus = true", "E_CLUSTER_FILE_VALUE: cpus | True | a whole number"),
        ("deadline_seconds = 'long'", "E_CLUSTER_FILE_VALUE: deadline_seconds | 'long' | a number"),
        ("object_store_mb = 10", "E_CLUSTER_FILE_VALUE: object_store_mb | 10 | a whole number | 80"),
        ("address = 4", "E_CLUSTER_FILE_VALUE: address"),
        ("[engine]\npython = 3", "E_CLUSTER_FILE_VALUE: engine.python"),
        ("[engine]\nreplicas = 0", "E_CLUSTER_FILE_VALUE: engine.replicas | a whole number"),
        ("[engine]\nreplicas = 1.5", "E_CLUSTER_FILE_VALUE: engine.replicas | 1.5 | a whole number"),
        ("[engine]\nrows = 0.5", "E_CLUSTER_FILE_VALUE: engine.rows | 0.5 | a whole number"),
        ("[engine]\ncontext = 0", "E_CLUSTER_FILE_VALUE: engine.context | a whole number"),
        ("engine = 1", "E_CLUSTER_FILE_VALUE: engine"),
        ("[learner", "E_NOT_TOML: not TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text, code, tmp_path):
    with refuses(code) as told:
        read_cluster_file(written(tmp_path, text))
    assert "\n" not in str(told.value)


def test_a_wrong_cluster_file_ends_the_command_before_anything_is_written(tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--backend", "ray", "--cluster", written(tmp_path, "nodes = 3"), "--out", str(out)]
    command_refuses(["run", "grpo", *flags], "E_CLUSTER_FILE_KEY: --cluster | 'nodes'", capsys)
    command_refuses(
        ["run", "grpo", "--cluster", "local", "--out", str(out)],
        "E_FLAGS_GO_TOGETHER: --cluster | --backend ray",
        capsys,
    )
    command_refuses(
        ["run", "grpo", "--backend", "ray", "--cluster", str(tmp_path / "no.toml"), "--out", str(out)],
        "E_FILE_UNREADABLE: --cluster | no.toml",
        capsys,
    )
    assert not out.exists()


@pytest.mark.parametrize(
    ("cluster", "device", "world", "code"),
    [
        (Cluster(cpus=2), "cpu", 3, "E_TOO_FEW_CPUS: --world 3 | --world 2"),
        (Cluster(cpus=8), "cuda", 2, "E_RANK_WITHOUT_GPU: it 0"),
        (
            Cluster(cpus=8, gpus={"RankHost": 1.0, "EngineHost": 1.0}),
            "cuda",
            2,
            "E_TOO_FEW_GPUS: want 3 | 2 here | here",
        ),
        (
            Cluster(cpus=2, replicas=3),
            "cpu",
            1,
            "E_TOO_FEW_CPUS",
        ),
        (
            Cluster(cpus=8, gpus={"LearnerHost": 1.0, "EngineHost": 0.5}, replicas=3),
            "cuda",
            1,
            "E_TOO_FEW_GPUS: want 2.5 | 2 here | here",
        ),
    ],
)
def test_more_ranks_or_replicas_than_there_is_room_for_are_refused(cluster, device, world, code, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refuses(code) as told:
        check_world(cluster, device, world)
    assert "\n" not in str(told.value)


def test_as_many_ranks_as_there_is_room_for_are_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    check_world(Cluster(cpus=2), "cpu", 2)
    check_world(Cluster(cpus=1), "cpu", 1)
    check_world(Cluster(cpus=1, address="10.0.0.1:6379"), "cpu", 9)
    check_world(Cluster(cpus=8, gpus={"RankHost": 1.0, "EngineHost": 1.0}), "cuda", 2)
    check_world(Cluster(cpus=8, gpus={"RankHost": 1.0, "EngineHost": 1.0}, replicas=3), "cuda", 1)
    check_world(Cluster(cpus=1, replicas=4), "cuda", 1)  # they share what there is
    check_world(Cluster(cpus=1, replicas=9, address="10.0.0.1:6379"), "cpu", 1)


def test_replicas_of_every_engine_of_vllm_are_counted(monkeypatch):
    """Two models are two engines, each with two processes."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    policies = {n: trainable(TINY).with_device_defaults(autocast=False) for n in ("generator", "verifier")}
    cluster = Cluster(cpus=8, gpus={"LearnerHost": 1.0, "VllmHost": 1.0}, replicas=2)
    with refuses("E_TOO_FEW_GPUS", names=("want 5", "4 here", "here")):
        with_gpu_check(cluster, 1, VllmPlacement())(policies, 0, "cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert len(with_gpu_check(cluster, 1, VllmPlacement())(policies, 0, "cuda", 1)) == 2
    elsewhere = replace(cluster, address="10.0.0.1:6379", replicas=9)
    assert len(with_gpu_check(elsewhere, 1, VllmPlacement())(policies, 0, "cuda", 1)) == 2


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--world", "2"], "E_FLAGS_GO_TOGETHER: --world | --backend ray"),
        (["--backend", "ray", "--world", "0"], "E_COMMAND_LINE: --world | '0'"),
        (["--backend", "ray", "--world", "999"], "E_TOO_FEW_CPUS: --world 999"),
        (["--backend", "ray", "--cluster", "[engine]\nreplicas = 0"], "E_CLUSTER_FILE_VALUE: engine.replicas is 0"),
        (["--backend", "ray", "--cluster", "cpus = 2\n[engine]\nreplicas = 3"], "E_TOO_FEW_CPUS: engine.replicas is 3"),
    ],
    ids=["alone", "none", "too many", "no engine", "too many engines"],
)
def test_a_wrong_number_ends_the_command_before_anything_is_written(flags, code, tmp_path, capsys):
    out = tmp_path / "run"
    flags = [written(tmp_path, flag) if "=" in flag else flag for flag in flags]
    command_refuses(["run", "grpo", "--device", "cpu", *flags, "--out", out], code, capsys)
    assert not out.exists()


def test_an_engine_on_a_card_asks_for_little_of_it_to_be_free():
    assert card_arguments("cpu") == {}
    assert card_arguments("cuda") == card_arguments("cuda:1") == {"gpu_memory_utilization": 0.05}
