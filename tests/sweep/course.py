"""The course of a sweep: what others have, what the stranger tries, and what must be as before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from reput_broker.access.user_file import UserFile
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import Names
from reput_protocol.wire.header import HeaderType
from support.broker_process import BrokerProcess
from support.command import reput
from sweep.stranger import Stranger
from sweep.world import ADMIN, OWN, World, with_stranger

_ENVIRONMENT: Final = {
    "REPUT_ACCESS__ENABLED": "true",
    "REPUT_ACCESS__ADMIN_SECRET": ADMIN.secret,
    "REPUT_HA_PORT": "off",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
}
_DELAYED_S: Final = 3.0
"""The shortest delay is one second."""


def sweep(
    directory: Path, fields_in: Sequence[HeaderType], properties_in: Sequence[HeaderType], *, quick: bool = False
) -> Iterator[str]:
    """Yield what was wrong, and print what was tried.

    Args:
        fields_in, properties_in: the types of header in which each is tried.
        quick: without the combinations of properties that only together have an effect.
    """
    store = directory / "store"
    UserFile(store / "access" / "users.json").change(with_stranger)
    with BrokerProcess(store, environment=_ENVIRONMENT) as broker:
        world = World(broker.address)
        before = world.state()
        for header_type in fields_in:
            yield from _attempt(broker.address, header_type, "fields", Stranger.try_fields)
            yield from _changes(f"fields of {header_type.name} headers", before, world)
        for header_type in properties_in:
            try_properties = partial(Stranger.try_properties, world=world, quick=quick)
            yield from _attempt(broker.address, header_type, "properties", try_properties)
            yield from _changes(f"properties in {header_type.name} frames", before, world)
        time.sleep(_DELAYED_S)
        yield from _changes("delays", before, world)
        yield from _replay(broker.address)
        yield from _changes("the replay of dead letters", before, world)
        broker.kill()
        broker.start()
        broker.wait_ready()
        world.restarted()
        yield from _changes("a restart", before, world)
        yield from world.use()
        world.close()


def _attempt(address: str, header_type: HeaderType, what: str, attempt: Callable[[Stranger], None]) -> Iterator[str]:
    with Stranger(address, header_type) as stranger:
        attempt(stranger)
        print(f"{what}, {header_type.name}: {stranger.attempts:,} requests", flush=True)
        yield from stranger.wrong


def _replay(address: str) -> Iterator[str]:
    with Stranger(address, HeaderType.MSGPACK) as stranger:
        given_up = stranger.give_up_all()
        yield from stranger.wrong
    with patch.dict(os.environ, REPUT_USER=ADMIN.user, REPUT_SECRET=ADMIN.secret):
        done = reput("dlq", "replay", OWN[Names.GROUP], "--yes", server=address)
    print(f"{given_up:,} messages given up; {(done.stdout + done.stderr).strip()[-200:]}", flush=True)
    if not given_up or done.returncode not in (ExitCode.DONE, ExitCode.PARTIAL):
        yield f"{given_up} messages given up, and the replay ended with {done.returncode}: {done.stderr}"


def _changes(after: str, before: dict[str, Any], world: World) -> Iterator[str]:
    now = world.state()
    for what, had in before.items():
        if now[what] != had:
            yield f"after {after}: {what} of others were {had} and are {now[what]}"
    if world.asked:
        yield f"after {after}: others' member was sent {world.asked}"
