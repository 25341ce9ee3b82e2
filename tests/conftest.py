"""Fixtures of all tests.

`reput_broker`, a real broker in a thread, is a fixture of the product's own plugin, `reput_broker.pytest_plugin`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

KERNEL = Path(__file__).parents[1] / "protocol" / "reput_protocol" / "kernel"

_SPARK = Path(__file__).parent / "spark"
_USE_A_SESSION = {
    "tests/conformance/test_spark_jobs.py",
    *(f"tests/spark/{path.name}" for path in _SPARK.glob("test_*.py") if path.name != "test_submit.py"),
}


class _Sources(MetaPathFinder):
    """Finds the source of each module of the kernel, although it has been compiled."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if package != "reput_protocol.kernel":
            return None
        return spec_from_file_location(name, KERNEL / f"{module}.py")


def _use_interpreted_kernel() -> None:
    """Load the kernel's sources in this process, without Cython's help."""
    cython, sys.modules["cython"] = sys.modules.get("cython"), None  # type: ignore[assignment]
    sys.meta_path.insert(0, _Sources())
    from reput_protocol import kernel

    for name in kernel.MODULES:
        import_module(f"reput_protocol.kernel.{name}")
    del sys.modules["cython"]
    if cython is not None:
        sys.modules["cython"] = cython
    assert kernel.FORM == "interpreted"


if os.environ.get("KERNEL") == "interpreted":  # before anything imports it
    _use_interpreted_kernel()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of what a script runs in the background, and of all its children. Tests interrupt themselves and processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from conformance import counts  # noqa: E402

# Speed is measured in benchmarks/, never asserted by a test: a busy machine must not fail one.
settings.register_profile("reput", deadline=None, max_examples=20 if os.environ.get("KERNEL") else 60)
settings.load_profile("reput")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the long tests."""
    parser.addoption("--long", action="store_true", help="run also what takes long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(pytest.mark.skip(reason="takes long: `make test ARGS=--long` runs it"))


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of what a module's tests share. It is removed after them: a store takes more than 1 GiB."""
    path = tmp_path_factory.mktemp("module")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def slow_is_not_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a producer leave out a broker that is slow to answer."""
    monkeypatch.setattr("reput_client.produce.queue_selector._LEFT_OUT_S", (0.0,) * 8)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Restore the configuration of the log, so that no test depends on those that ran before it in its process."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over what was compared."""
    counts.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what was compared by a process of tests that has ended."""
    counts.take_over(getattr(node, "workeroutput", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was compared."""
    counts.show(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """The files that use a Spark session run in one process, which starts one JVM; each other file in any."""
    from xdist.scheduler import LoadFileScheduling

    class OneJvm(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "Spark" if file in _USE_A_SESSION else file

    return OneJvm(config, log)
