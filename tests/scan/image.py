"""A broker as the image starts it, with a directory of this machine in place of the volume."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from reput_client import Credentials

_ROOT: Final = Path(__file__).parents[2]
_VOLUME: Final = "/var/lib/reput"
_CONFIGURATION: Final = "/etc/reput/broker.toml"
_READY_S: Final = 60.0


def image_start(volume: Path) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the arguments of `reput` that the image's last stage has."""
    last = re.sub(r"\\\n\s*", " ", (_ROOT / "Dockerfile").read_text()).rpartition("\nFROM ")[2]
    variables: dict[str, str] = {}
    for line in re.findall(r"^ENV (.*)$", last, re.MULTILINE):
        for pair in line.split():
            name, _, value = pair.partition("=")
            variables[name] = value
    command = re.search(r"^CMD (\[.*\])$", last, re.MULTILINE)
    assert command is not None, "the Dockerfile has no CMD"
    places = {_VOLUME: str(volume), _CONFIGURATION: str(_ROOT / "conf" / "container.toml")}

    def here(text: str) -> str:
        for there, path in places.items():
            text = text.replace(there, path)
        return text

    arguments = [here(word) for word in json.loads(command[1])]
    return {name: here(value) for name, value in variables.items()}, arguments


class ImageBroker:
    """A process of that broker; a context manager that ends it.

    Args:
        inside: the words before its command.
        environment: more variables than the image has.
    """

    def __init__(self, volume: Path, inside: Sequence[str], environment: Mapping[str, str]) -> None:
        self._volume = volume
        self._log = volume.with_suffix(".log")
        variables, arguments = image_start(volume)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REPUT_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-m", "reput_cli", *arguments],
                env={**kept, **variables, **environment},
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Wait until it serves, which it logs."""
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            text = self._log.read_text(errors="replace")
            assert self._process.poll() is None, f"the broker has ended:\n{text}"
            if "broker_ready" in text:
                return
            time.sleep(0.05)
        raise AssertionError(f"the broker is not ready after {_READY_S:g} s:\n{text}")

    @property
    def administrator(self) -> Credentials:
        """The user that the first start has made."""
        return Credentials("admin", (self._volume / "access" / "admin.secret").read_text().strip())

    def defects(self) -> list[str]:
        """Return the lines of its log that tell of a defect."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if "defect" in line]

    def __enter__(self) -> ImageBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
