"""What holds for all tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

KERNEL = Path(__file__).parents[1] / "protocol" / "reput_protocol" / "kernel.py"


def _use_interpreted_kernel() -> None:
    """Load the kernel's source in this process, although it has been compiled, and without Cython's help."""
    spec = importlib.util.spec_from_file_location("reput_protocol.kernel", KERNEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    cython, sys.modules["cython"] = sys.modules.get("cython"), None  # type: ignore[assignment]
    sys.modules["reput_protocol.kernel"] = module
    spec.loader.exec_module(module)
    if cython is None:
        del sys.modules["cython"]
    else:
        sys.modules["cython"] = cython
    import reput_protocol

    reput_protocol.kernel = module  # type: ignore[attr-defined]
    assert module.FORM == "interpreted"


if os.environ.get("KERNEL") == "interpreted":  # before anything imports it
    _use_interpreted_kernel()

from conformance import counts  # noqa: E402

# Speed is measured in benchmarks/, never asserted by a test: a busy machine must not fail one.
settings.register_profile("reput", deadline=None)
settings.load_profile("reput")


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
