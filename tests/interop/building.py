"""The clients of the suite, fetched and built on first use into build/interop/.

Maven, npm, pip, go and cargo fetch them once, by version; nothing of them is among Reput's own requirements.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.maven import DoesNotCompile, Unreachable, alone, built_classpath, digest_of

SOURCES = Path(__file__).parent / "clients"
BUILD = Path(__file__).parents[2] / "build" / "interop"
_TIMEOUT_S = 1800


@functools.cache
def java(name: str, version: str) -> str:
    """The class path of a Java driver with a version of its client; see `built_classpath` for its errors."""
    properties = {"rocketmq.version": version}
    if version.startswith("4."):
        properties["rocketmq.acl"] = "true"
    return built_classpath(SOURCES / name, BUILD / f"{name}-{version}", "interop.build", properties)


@functools.cache
def node(package: str, version: str) -> Path:
    """The directory of the Node drivers with one client, an npm package.

    Raises:
        Unreachable: node or npm is not installed, or npm does not get the client.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unreachable(f"{program} is not installed")
    into = BUILD / f"node-{package}"
    with alone(into):
        stamp, digest = into / "stamp", digest_of(SOURCES / "node", version)
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(SOURCES / "node", into)
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
            _fetch(["npm", "install", *options, f"{package}@{version}"], into)
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


@functools.cache
def go(program: str, module: str, version: str) -> Path:
    """A Go driver with a version of its client's module.

    Raises:
        Unreachable: go is not installed, or does not get the module.
        DoesNotCompile: the program does not compile.
    """
    if shutil.which("go") is None:
        raise Unreachable("go is not installed")
    into = BUILD / f"go-{program}"
    with alone(into):
        stamp, digest = into / "stamp", digest_of(SOURCES / "go", module, version)
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(SOURCES / "go", into)
            _fetch(["go", "get", f"{module}@v{version}"], into)
            _fetch(["go", "get", f"./{program}"], into)
            _compile(["go", "build", "-buildvcs=false", "-o", "driver.out", f"./{program}"], into)
            stamp.write_text(digest)
    return into / "driver.out"


@functools.cache
def rust(crate: str, version: str) -> Path:
    """The Rust driver with a version of its client's crate.

    Raises:
        Unreachable: cargo or a C compiler is not installed, or cargo does not get the crate.
        DoesNotCompile: the program does not compile.
    """
    for program in ("cargo", "cc"):
        if shutil.which(program) is None:
            raise Unreachable(f"{program} is not installed")
    into = BUILD / f"rust-{crate}"
    with alone(into):
        stamp, digest = into / "stamp", digest_of(SOURCES / "rust", crate, version)
        if not stamp.exists() or stamp.read_text() != digest:
            # What cargo has built stays: the crate's own dependencies take minutes.
            shutil.copytree(SOURCES / "rust", into, dirs_exist_ok=True)
            _fetch(["cargo", "add", "--quiet", f"{crate}@={version}"], into)
            _fetch(["cargo", "fetch", "--quiet"], into)
            _compile(["cargo", "build", "--quiet", "--offline", "--target-dir", "target"], into)
            stamp.write_text(digest)
    return into / "target" / "debug" / "driver"


def _fetch(command: Sequence[str], directory: Path) -> None:
    result = _run(command, directory)
    if result.returncode:
        text = (result.stderr or result.stdout).strip()
        raise Unreachable(f"{Path(command[0]).name} does not get {command[-1]}: {text[-300:]}")


def _compile(command: Sequence[str], directory: Path) -> None:
    result = _run(command, directory)
    if result.returncode:
        raise DoesNotCompile(f"the program in {directory} does not compile:\n{result.stderr}")


def _run(command: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} was not done after {_TIMEOUT_S} s") from None
