"""`python tests/sweep/run.py`: can a user without rights on others' topics, groups and clients do anything to them?

Others have topics with messages, delayed, popped, prepared and dead ones, groups, members and locks. A stranger puts
their names into each field of each request that names something (by the table of requests) and into each property that
the broker acts on (by the list of properties), in every type of header. Then delays elapse, the stranger gives up its
own messages, the administrator replays the dead letters, and the broker is killed and started again. Fails if anything
of others has changed, if they are told from what does not exist, or if a field is not refused.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from broker_process import BrokerProcess
from command import reput
from reput_broker.access.user_file import UserFile
from reput_protocol.names import Names
from reput_protocol.wire.header import HeaderType
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
_ONLINE: Final = ("producers", "members", "queues")
"""What a restarted broker does not know."""


def sweep(directory: Path, header_types: Sequence[HeaderType]) -> Iterator[str]:
    """Yield what was wrong, and print what was tried."""
    store = directory / "store"
    UserFile(store / "access" / "users.json").change(with_stranger)
    with BrokerProcess(store, environment=_ENVIRONMENT) as broker:
        world = World(broker.address)
        before = world.state()
        for header_type in header_types:
            stranger = Stranger(broker.address, header_type)
            for what, attempt in (
                ("fields", stranger.try_fields),
                ("properties", lambda stranger=stranger: stranger.try_properties(world)),
            ):
                attempt()
                yield from _changes(f"{what} of {header_type.name} headers", before, world)
            print(f"{header_type.name}: {stranger.attempts:,} requests", flush=True)
            yield from stranger.wrong
            stranger.close()
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


def _replay(address: str) -> Iterator[str]:
    stranger = Stranger(address, HeaderType.MSGPACK)
    given_up = stranger.give_up_all()
    yield from stranger.wrong
    stranger.close()
    with patch.dict(os.environ, REPUT_USER=ADMIN.user, REPUT_SECRET=ADMIN.secret):
        done = reput("dlq", "replay", OWN[Names.GROUP], server=address)
    print(f"{given_up:,} messages given up; {(done.stdout + done.stderr).strip()[-200:]}", flush=True)
    if not given_up:
        yield f"nothing was given up, and nothing replayed: {done.stderr}"


def _changes(after: str, before: dict[str, Any], world: World) -> Iterator[str]:
    now = world.state()
    for what, had in before.items():
        if now[what] != had:
            yield f"after {after}: {what} of others were {had} and are {now[what]}"
    if world.asked:
        yield f"after {after}: others' member was sent {world.asked}"


def main() -> int:
    """Parse the arguments, sweep, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one type of header")
    arguments = parser.parse_args()
    header_types = (HeaderType.MSGPACK,) if arguments.quick else tuple(HeaderType)
    with tempfile.TemporaryDirectory(prefix="reput-sweep-") as directory:
        wrong = 0
        for text in sweep(Path(directory), header_types):
            wrong += 1
            print(f"WRONG: {text[:1500]}", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
