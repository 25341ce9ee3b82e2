"""Two kills of a proxy under RocketMQ's gRPC client for Python; `make soak KIND=proxy-faults` kills for long."""

from __future__ import annotations

import random

import pytest

from proxy_faults.kinds import run
from support.maven import Unreachable

pytestmark = pytest.mark.process

_INVISIBLE_S = 10.0
"""The least that the proxy accepts."""


@pytest.mark.long
def test_two_kills() -> None:
    try:
        outcome = run("proxy", "grpc-python", 2, random.Random(1), invisible_s=_INVISIBLE_S)
    except Unreachable as error:
        pytest.skip(f"RocketMQ's client was not checked: {error}")
    assert not outcome.wrong, outcome
