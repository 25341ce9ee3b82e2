"""A part of `make interop`: RocketMQ's Java client and ours, whose processes are started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.catalogue import CLIENTS
from interop.checks import ALONE, CHECKS
from interop.scene import Scene
from support.maven import Unreachable

pytestmark = pytest.mark.process

_CLIENT = "java-5"
_NEEDS_ANOTHER_PROCESS = {"broadcasting", "member-killed"} | ALONE.keys()
_NEEDS_MINUTES = {"dead-letter", "send-delay-level"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    try:
        CLIENTS[_CLIENT].command()
    except Unreachable as error:
        pytest.skip(f"RocketMQ's Java client was not checked: {error}")
    with Scene(tmp_path_factory.mktemp("interop")) as made:
        made.senders = ["reput", _CLIENT]
        yield made


@pytest.mark.parametrize(
    "feature", [each for each in CHECKS if each not in _NEEDS_ANOTHER_PROCESS | _NEEDS_MINUTES | CLIENTS[_CLIENT].lacks]
)
def test_java(scene: Scene, feature: str) -> None:
    CHECKS[feature](scene, _CLIENT)


@pytest.mark.parametrize("feature", ["tls", "users", pytest.param("wrong-secret", marks=pytest.mark.long)])
def test_java_at_a_closed_broker(scene: Scene, tmp_path: Path, feature: str) -> None:
    with Scene(tmp_path, ALONE[feature](tmp_path)) as closed:
        CHECKS[feature](closed, _CLIENT)
