"""Skips the conformance tests, by name, if RocketMQ is not available."""

from __future__ import annotations

import pytest

from conformance import apache
from support.maven import Unreachable


@pytest.fixture(scope="session", autouse=True)
def rocketmq() -> None:
    """RocketMQ, ready to be started."""
    try:
        apache.classpath()
    except Unreachable as error:
        pytest.skip(f"conformance with Apache RocketMQ was not checked: {error}")
