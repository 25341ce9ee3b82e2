"""Targets of the Makefile: what they install and run, and that the command line needs no more than `make run`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = (
    "requirements-pip.lock",
    "requirements-runtime.lock",
    "requirements-build.lock",
    "requirements-service.lock",
    "requirements-columns.lock",
    "requirements-spark.lock",
    "requirements.lock",
    "requirements-docs.lock",
)
DELTA_LOCK = "requirements-delta.lock"
NEED_LITTLE = {"run", "demo", "demo KIND=shop", "bench", "bench KIND=stalls", "bench KIND=store"}
NEED_SERVICE = {"cluster", "proxy", "bench KIND=replication"}
NEED_COLUMNS = {"bench KIND=peers"}
NEED_SPARK = {"demo KIND=spark", "bench KIND=spark"}


def pins(lock: str) -> dict[tuple[str, str], str]:
    """Every package of a lock file with its condition, and its version."""
    lines = (ROOT / lock).read_text().splitlines()
    found = [re.match(r"([a-z0-9-]+)==(\S+)(?: ; (.*?))? \\$", line) for line in lines]
    return {(match[1], match[3] or ""): match[2] for match in found if match}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with all files that the Makefile reads, and an environment marked as ready."""
    (tmp_path / "client").mkdir()
    for name in ("Makefile", "pyproject.toml", "client/pyproject.toml", "client/hatch_build.py", *LOCKS, DELTA_LOCK):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def said_by(clone: Path, command: str) -> str:
    """What a `make` would run."""
    words = ["make", "-n", "-C", str(clone), "BUNDLED_PIP=pip", "JOBS=1", *shlex.split(command)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def installed_by(clone: Path, command: str) -> list[str]:
    """The lock files that a `make` would install, in order."""
    return re.findall(r"-r (\S+\.lock)", said_by(clone, command))


def run_by(clone: Path, command: str) -> str:
    """The last program that a `make` would run."""
    return re.sub(" +", " ", re.findall(r"bin/python (.*)", said_by(clone, command))[-1]).strip()


def listed(name: str) -> list[str]:
    lines = re.search(rf"(?m)^{name} := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text())
    assert lines is not None
    return lines[1].replace("\\", "").split()


def targets() -> set[str]:
    found = re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    kinds = {"bench": listed("BENCHES"), "demo": ["java", "shop", "spark"], "soak": listed("SOAKS")}
    several = {f"{target} KIND={kind}" for target, names in kinds.items() for kind in names}
    return {*found, *several} - {"soak"}


def test_each_kind_has_its_program(clone: Path) -> None:
    for command in targets():
        if "KIND" in command:
            assert (ROOT / run_by(clone, command).split()[0]).exists()
    here = {path.parent.name.replace("_", "-") for path in ROOT.glob("tests/*/run.py")}
    assert set(listed("SOAKS")) == here - {"interop"}


@pytest.mark.parametrize(
    ("was", "runs"),
    [
        ("crash ROUNDS=20 SEED=7", "tests/crash/run.py --rounds 20 --seed 7"),
        (
            "faults IMAGES=500 KIND='cut short' ARGS='--jobs 2'",
            "tests/faults/run.py --images 500 --kind 'cut short' --jobs 2",
        ),
        ("cluster-faults MINUTES=30", "tests/cluster_faults/run.py --minutes 30"),
        ("simulate SEED=7", "tests/simulation/run.py --seed 7 --seeds 1000"),
        ("simulate SEEDS=10000", "tests/simulation/run.py --seeds 10000"),
        ("simulate-planted", "tests/simulation/run.py --bug only"),
        ("planted SEED=1", "tests/faults/run.py --bug only --seed 1"),
        ("pipeline-planted KIND=sink", "tests/pipeline_faults/run.py --bug only --kind 'sink'"),
        ("pipeline-roundtrip MESSAGES=10", "tests/round_trip/run.py --messages 10"),
        ("bench-stalls ARGS='--only cold'", "benchmarks/stalls.py --only cold && true"),
        ("example ARGS='--server a:1'", "examples/order_service --server a:1"),
    ],
)
def test_an_old_name_runs_what_it_ran(clone: Path, was: str, runs: str) -> None:
    assert run_by(clone, was) == runs
    assert f"make {was.split()[0]} is now: make " in said_by(clone, was)


def test_a_kind_that_does_not_exist_is_answered_with_those_that_do(clone: Path) -> None:
    for command in ("bench KIND=fast", "soak", "soak KIND=interop", "demo KIND=large"):
        done = subprocess.run(
            ["make", "-n", "-C", clone, *command.split()], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "KIND is" in done.stderr


def test_a_target_installs_what_it_needs_and_no_more(clone: Path) -> None:
    few = [*LOCKS[:3]]
    service, columns, spark = ([*few, lock] for lock in LOCKS[3:6])
    every = [*spark, LOCKS[6]]
    tested = [*every, LOCKS[7]]
    found = {target: installed_by(clone, target) for target in targets() - {"help", "dist", "lock", "clean"}}
    assert {target for target in found if found[target] == few} >= NEED_LITTLE
    assert {target for target in found if found[target] == service} == NEED_SERVICE
    assert {target for target in found if found[target] == columns} == NEED_COLUMNS
    assert {target for target in found if found[target] == spark} == NEED_SPARK
    assert {target for target in found if found[target] == every} >= {
        "setup",
        "check",
        "soak KIND=crash",
        "soak KIND=faults",
    }
    assert found["docs"] == [LOCKS[0], LOCKS[7]]
    assert found["test"] == tested
    assert all(lock in (few, service, columns, spark, every, tested, found["docs"]) for lock in found.values())
    assert installed_by(clone, "test DELTA=1") == [*every, DELTA_LOCK, LOCKS[7]]


def test_installed_packages_are_not_installed_again(clone: Path) -> None:
    for stamp in (".ready-venv", ".ready-packages", ".ready-reput"):
        (clone / ".venv" / stamp).touch()
    assert installed_by(clone, "run") == []
    assert installed_by(clone, "test") == [*LOCKS[5:]]
    for stamp in (".ready-spark", ".ready-dev", ".ready-docs"):
        (clone / ".venv" / stamp).touch()
    for target in ("run", "test", "demo KIND=spark"):
        assert installed_by(clone, target) == []


def test_the_lock_files_agree() -> None:
    """One is installed on top of the other, and pip does not look at what they need."""
    every = pins("requirements.lock")
    assert len(every) > 40
    # Where a package is needed may differ: the tests need some on every platform.
    versions = {(name, version) for (name, _), version in every.items()}
    for lock in LOCKS[1:-2]:
        few = pins(lock)
        assert few
        assert {(name, version) for (name, _), version in few.items()} <= versions
    docs = pins(LOCKS[-1])
    assert "zensical" in {name for name, _ in docs}
    both = docs.keys() & every.keys()
    assert {name: docs[name] for name in both} == {name: every[name] for name in both}


def test_the_spark_for_delta_is_one_that_the_source_supports() -> None:
    """It comes first in PYTHONPATH, so that everything in this lock takes the place of what is installed."""
    delta = {name: version for (name, _), version in pins(DELTA_LOCK).items()}
    assert delta.keys() == {"delta-spark", "importlib-metadata", "py4j", "pyspark", "zipp"}
    assert delta["pyspark"].startswith("4.2.")


IMPORT_ALL = """
import importlib, importlib.metadata, os, pkgutil, re, runpy, sys

allowed = set(sys.argv[1].split(","))

class OnlyThese:
    def __init__(self):
        given_by = importlib.metadata.packages_distributions()
        normal = lambda name: re.sub("[-_.]+", "-", name).lower()
        self.hidden = {
            module for module, names in given_by.items() if not allowed & {normal(name) for name in names}
        }
        assert {"hypothesis", "numpy", "pyspark", "pyarrow", "pandas"} & self.hidden, self.hidden
        assert not {"trio", "click", "reput_cli"} & self.hidden

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, OnlyThese())
for package in sys.argv[2].split(","):
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{package}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print("imported")
"""


@pytest.mark.parametrize(
    ("packages", "more"),
    [
        ("reput_cli,reput_broker.serve,reput_client.blocking", ""),
        ("reput_broker.pytest_plugin", "pytest,pluggy,iniconfig,packaging"),
    ],
)
def test_the_command_line_and_the_plugin_need_only_the_requirements_of_run(packages: str, more: str) -> None:
    allowed = {name for name, _ in pins("requirements-runtime.lock")} | {"reput", "reput-client", *more.split(",")}
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(sorted(allowed)), packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr
