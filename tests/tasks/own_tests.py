"""The functional tests of Kombu and Celery themselves, from their source distributions, on Reput.

    python tests/tasks/own_tests.py [--only kombu | celery | surroundings] [--backend URL] [--pytest ARGUMENTS]

Kombu's are the classes that it applies to each of its transports. Celery's integration tests run with a worker of
theirs; several of them count in Redis, so redis-server is started on a port of its own, and they are told to use this
transport and this result backend. Then Celery's gevent pool and Flower are tried (`surroundings.py`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from support.broker_process import free_port
from tasks import surroundings

_KOMBU = """
import os

import kombu
import pytest

import reput_client.tasks.celery
from t.integration import common

URL = os.environ["REPUT_URL"]


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection("reput://127.0.0.1:1//")


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"reput://127.0.0.1:1//;{URL}")


for each in (
    "BasicFunctionality", "BaseExchangeTypes", "BaseTimeToLive", "BasePriority", "BaseMessage", "BaseEventLoop",
    "BaseFailover",
):
    globals()[f"test_{each}"] = type(f"test_{each}", (getattr(common, each),), {})
"""
_CELERY_PLUGINS = ("-p", "reput_scheme", "-p", "celery.contrib.pytest")
_CELERY = "import reput_client.tasks.celery\n"
_ALONE = ["-p", "no:reput", "-p", "no:trio", "-p", "no:cacheprovider", "-W", "ignore", "--import-mode=prepend"]
_PLUGINS = ("pytest-rerunfailures", "pytest-timeout", "pytest-subtests", "redis", "attrs")
_CELERYS = ("test_tasks", "test_canvas", "test_inspect", "test_group_chains", "test_worker", "test_serialization")


def main() -> int:
    """Run the tests of one or both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["kombu", "celery", "surroundings"])
    parser.add_argument("--backend", help="result backend of Celery's tests; by default Reput's")
    parser.add_argument("--pytest", default="", help="arguments of pytest")
    options = parser.parse_args()
    more = shlex.split(options.pytest)
    failed = False
    with tempfile.TemporaryDirectory(prefix="reput-own-tests-") as place, _broker(Path(place)) as url:
        chosen = [options.only] if options.only else ["kombu", "celery", "surroundings"]
        for what in chosen:
            if what == "surroundings":
                failed |= surroundings.report(url, Path(place))
                continue
            directory = _source(what, Path(place))
            if what == "kombu":
                (directory / "t/integration/test_reput.py").write_text(_KOMBU)
                report = _run(directory, ["t/integration/test_reput.py", *more], {"REPUT_URL": url})
            else:
                (directory / "reput_scheme.py").write_text(_CELERY)
                plugins = Path(place) / "plugins"
                install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(plugins)]
                subprocess.run([*install, *_PLUGINS], check=True)
                files = [f"t/integration/{name}.py" for name in _CELERYS]
                with _redis() as redis:
                    environ = {
                        "TEST_BROKER": url,
                        "TEST_BACKEND": options.backend or url,
                        "REDIS_PORT": redis,
                        "PYTHONPATH": f"{directory}:{plugins}",
                    }
                    report = _run(directory, [*_CELERY_PLUGINS, *files, *more], environ)
            failed |= _print(what, report)
    return int(failed)


@contextmanager
def _broker(place: Path) -> Iterator[str]:
    config = BrokerConfig.model_validate({"data_dir": place / "store", "port": 0, "http_port": None})
    with BackgroundBroker(config) as broker:
        yield f"reput://{broker.address}//"


@contextmanager
def _redis() -> Iterator[str]:
    server = shutil.which("redis-server")
    if server is None:
        sys.exit("redis-server is not installed: apt-get install redis-server")
    port = str(free_port())
    process = subprocess.Popen([server, "--port", port, "--save", ""], stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def _source(package: str, place: Path) -> Path:
    """Download and unpack the source of the installed version."""
    wanted = f"{package}=={version(package)}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(place)]
    subprocess.run([*pip, wanted], check=True)
    (archive,) = place.glob(f"{package}-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def _run(directory: Path, arguments: list[str], environ: dict[str, str]) -> Path:
    report = directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *_ALONE, *arguments]
    subprocess.run(command, cwd=directory, env={**os.environ, **environ}, check=False)
    return report


def _print(what: str, report: Path) -> bool:
    """Print how many tests of each class or file passed, and what did not; return whether any failed."""
    counts: dict[str, Counter[str]] = {}
    notes = []
    for case in ElementTree.parse(report).iter("testcase"):
        place = str(case.get("classname")).removeprefix("t.integration.")
        found = next((each for each in case if each.tag in ("skipped", "failure", "error")), None)
        result = "passed" if found is None else found.tag
        counts.setdefault(place, Counter())[result] += 1
        if found is not None:
            notes.append(f"  {result}: {place}::{case.get('name')}: {str(found.get('message')).splitlines()[0][:160]}")
    print(f"\n{what} {version(what)}: tests of its own on Reput")
    for place, results in counts.items():
        print(f"  {place}: {', '.join(f'{number} {result}' for result, number in sorted(results.items()))}")
    print("\n".join(notes))
    return any(results["failure"] or results["error"] for results in counts.values())


if __name__ == "__main__":
    sys.exit(main())
