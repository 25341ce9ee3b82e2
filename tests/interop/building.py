"""The clients of the suite, fetched and built on first use into build/interop/.

Maven, npm and pip fetch them once, by version; nothing of them is among Reput's own requirements.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from maven import Unreachable, alone, built_classpath, digest_of

SOURCES = Path(__file__).parent / "clients"
BUILD = Path(__file__).parents[2] / "build" / "interop"
_TIMEOUT_S = 900


@functools.cache
def java(name: str, version: str) -> str:
    """The class path of a Java driver with a version of its client; see `built_classpath` for its errors."""
    properties = {"rocketmq.version": version}
    if version.startswith("4."):
        properties["rocketmq.acl"] = "true"
    return built_classpath(SOURCES / name, BUILD / f"{name}-{version}", "interop.build", properties)


@functools.cache
def node(version: str) -> Path:
    """The directory of the Node driver with its client.

    Raises:
        Unreachable: node or npm is not installed, or npm does not get the client.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unreachable(f"{program} is not installed")
    into = BUILD / "node"
    with alone(into):
        stamp, digest = into / "stamp", digest_of(SOURCES / "node", version)
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(SOURCES / "node", into)
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
            _fetch(["npm", "install", *options, f"ali-ons@{version}"], into)
            stamp.write_text(digest)
    return into


@functools.cache
def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of a virtual environment with these requirements.

    Raises:
        Unreachable: pip does not get them.
    """
    into = BUILD / name
    with alone(into):
        stamp, digest = into / "stamp", repr((sys.version, requirements))
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(into, ignore_errors=True)
            into.mkdir(parents=True)
            _fetch([sys.executable, "-m", "venv", "--without-pip", "."], into)
            options = ["--disable-pip-version-check", "--quiet", "--python", "bin/python"]
            _fetch([sys.executable, "-m", "pip", *options, "install", *requirements], into)
            stamp.write_text(digest)
    return into / "bin" / "python"


def _fetch(command: Sequence[str], directory: Path) -> None:
    try:
        subprocess.run(
            command,
            cwd=directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} was not done after {_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        text = (error.stderr or error.stdout).strip()
        raise Unreachable(f"{Path(command[0]).name} does not get {command[-1]}: {text[-300:]}") from None
