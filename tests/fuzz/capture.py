"""`python tests/fuzz/capture.py [NAME ...]`: record requests of each client into tests/golden/frames/.

The clients are those of the interop suite and RocketMQ's `mqadmin`, fetched with Maven, npm and pip on first use. Each
signs what it sends, if it can, and works against a broker of its own, without access control, through a relay that
keeps a few examples of each request.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from conformance.java_cluster import JavaCluster
from conformance.mqadmin import Shell
from fuzz.captured import USER, write
from fuzz.recorder import Recorder
from interop.catalogue import CLIENTS
from interop.checks import ALONE, CHECKS
from interop.guards import Guard
from interop.proxy import signing_as
from interop.scene import Scene
from support.broker_process import BrokerProcess
from support.maven import Unreachable

_MQADMIN: Final = "mqadmin"
# These send what others send.
_LEFT_OUT: Final = ALONE.keys() | {"fields", "shared-group", "member-killed"}
_SIGNING: Final = Guard(
    clients={"INTEROP_USER": USER.user, "INTEROP_SECRET": USER.secret},
    proxy_settings=signing_as(USER.user, USER.secret),
)


class Way(NamedTuple):
    """How a client is started: its name in the interop suite, and the variables of its environment."""

    client: str
    environment: Mapping[str, str] = {}


_BINARY: Final = {"ROCKETMQ_SERIALIZE_TYPE": "ROCKETMQ"}
WAYS: Final[Mapping[str, Way]] = {
    "java-4": Way("java-4"),
    "java-4-binary": Way("java-4", _BINARY),
    "java-5": Way("java-5"),
    "java-5-binary": Way("java-5", _BINARY),
    "node": Way("node"),
    "cpp": Way("cpp"),
    "proxy": Way("grpc-python"),
    "reput": Way("reput"),
    _MQADMIN: Way(_MQADMIN),
}
"""By the name of the file."""


class _RecordedScene(Scene):
    """A scene whose clients reach the broker through a recorder, which the broker's routes name."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self._recorder = recorder
        super().__init__(directory, _SIGNING)
        recorder.start(self.broker.address)

    @property
    def address(self) -> str:
        return self._recorder.address


def main() -> int:
    """Parse the arguments, record, write."""
    parser = argparse.ArgumentParser(description="Record requests of clients.")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(WAYS)}; all if none is given")
    arguments = parser.parse_args()
    missed = 0
    for name in arguments.name or WAYS:
        try:
            with tempfile.TemporaryDirectory(prefix="reput-capture-") as directory:
                print(f"{name}: {_record(name, Path(directory))} frames", flush=True)
        except Unreachable as error:
            missed += 1
            print(f"{name}: not recorded: {error}", flush=True)
    return 1 if missed else 0


def _record(name: str, directory: Path) -> int:
    way = WAYS[name]
    recorder = Recorder(of_reput=way.client == "reput")
    try:
        with _environment({**way.environment, "REPUT_ADVERTISE": recorder.address}):
            if name == _MQADMIN:
                _run_mqadmin(directory, recorder)
            else:
                _run_client(way.client, directory, recorder)
        return write(name, recorder.examples())
    finally:
        recorder.close()


def _run_client(client: str, directory: Path, recorder: Recorder) -> None:
    """Run the checks. Those that fail are printed: a relay is not what they were written for."""
    CLIENTS[client].command()
    with _RecordedScene(directory, recorder) as scene:
        scene.senders = [client]
        for feature in CHECKS.keys() - _LEFT_OUT - CLIENTS[client].lacks:
            try:
                CHECKS[feature](scene, client)
            except Exception as error:
                print(f"  {client}: {feature}: {''.join(traceback.format_exception_only(error)).strip()[:300]}")


def _run_mqadmin(directory: Path, recorder: Recorder) -> None:
    settings = directory / "conf" / "tools.yml"
    settings.parent.mkdir()
    settings.write_text(f"accessKey: {USER.user}\nsecretKey: {USER.secret}\n")
    with _environment({"ROCKETMQ_HOME": str(directory)}):
        java = JavaCluster(directory / "java")
    try:
        with BrokerProcess(directory / "store") as broker:
            recorder.start(broker.address)
            shell = Shell(java, recorder.address, recorder.address, directory / "files")
            for _ in shell.run_all():
                pass
    finally:
        java.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if __name__ == "__main__":
    sys.exit(main())
