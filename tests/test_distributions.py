"""What is given to others: a wheel with the demo's models alone, one with the other models, and a source distribution
with all that its tests read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import cotrain
from cotrain.core.shipped import SHIPPED, folder_name
from tests.sentences import check_line

ROOT = Path(cotrain.__file__).parents[1]
MEGABYTE = 2**20
DEMO = ("shipped", "shipped-habits")  # models that the demo begins from
BUILD = """
import os, sys
from setuptools import build_meta
out = sys.argv[1]
print(build_meta.build_wheel(out), build_meta.build_sdist(out))
os.chdir("bases")
print(build_meta.build_wheel(out))
"""

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout knows which files are its own")


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the three files, built from a copy, since a build leaves its own folders behind."""
    copy = tmp_path_factory.mktemp("copy")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=copy, capture_output=True, check=True)
    return out


@pytest.mark.whole
def test_the_wheel_is_small_and_lacks_nothing(built):
    (wheel,) = built.glob("cotrain-*.whl")
    assert wheel.stat().st_size < 5 * MEGABYTE
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("cotrain/")}
    assert held == tracked("cotrain")


@pytest.mark.whole
def test_the_other_models_are_a_distribution_of_their_own(built):
    (wheel,) = built.glob("cotrain_bases-*.whl")
    weights = {Path(name).parts[1] for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".safetensors")}
    assert weights == {folder_name(name) for name in SHIPPED if name not in DEMO}


@pytest.mark.whole
def test_the_source_has_all_that_is_tracked(built):
    (source,) = built.glob("cotrain-*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked() - held == set()


@pytest.mark.whole
def test_an_installed_wheel_runs_from_another_folder(built, tmp_path):
    """The wheel alone, unpacked where the checkout is not seen: the demo's recipe runs, and a model that is not there
    is named with where it comes from."""
    (wheel,) = built.glob("cotrain-*.whl")
    place = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(place)
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "cotrain", *words]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    ran = command("run", "demo", "--smoke", "--out", "run")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    refused = command("run", "spiral", "--smoke", "--out", "other", "--log-level", "debug")
    assert refused.returncode == 2
    check_line(refused.stderr.splitlines()[-1], "E_SHIPPED_MODEL_MISSING: cotrain-bases")
