"""Java programs that tests run: built with Maven on first use, and again when their sources change.

Maven fetches what a program needs from Maven Central once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

_TIMEOUT_S = 900


class Unreachable(Exception):
    """A program cannot be had here; the text says what is missing."""


class DoesNotCompile(Exception):
    """The program does not compile; the text is Maven's."""


def built_classpath(
    sources: Path, into: Path, directory_property: str, properties: Mapping[str, str] | None = None
) -> str:
    """What `java -cp` needs for the program in `sources`, built into `into` if need be.

    Args:
        directory_property: by which the program's `pom.xml` names the directory that it is built into.
        properties: others of its `pom.xml`.

    Raises:
        Unreachable: java or mvn is not installed, or Maven does not get its artifacts.
        DoesNotCompile: the program does not compile.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Unreachable(f"{program} is not installed")
    given = {**(properties or {}), directory_property: str(into)}
    with alone(into):
        stamp, dependencies = into / "stamp", into / "classpath"
        digest = digest_of(sources, *sorted(given.items()))
        if not (
            stamp.exists()
            and stamp.read_text() == digest
            and all(map(os.path.exists, dependencies.read_text().split(os.pathsep)))
        ):
            _build(sources, into, dependencies, given)
            stamp.write_text(digest)
        return os.pathsep.join((str(into / "classes"), dependencies.read_text()))


@contextlib.contextmanager
def alone(into: Path) -> Iterator[None]:
    """Tests that run side by side build once: the others wait."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{into}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest_of(sources: Path, *more: object) -> str:
    """A digest of the files in a directory, and of what else decides about a build."""
    digest = hashlib.sha256(repr(more).encode())
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _build(sources: Path, into: Path, dependencies: Path, properties: Mapping[str, str]) -> None:
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    maven = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(sources / "pom.xml")]
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={dependencies}"]
    goals += [f"-D{name}={value}" for name, value in properties.items()]
    # Offline first, which suffices if everything is in the local repository.
    for options in (["-o"], []):
        result = _run([*maven, *options, *goals])
        if result.returncode == 0:
            return
    if "COMPILATION ERROR" in result.stdout:
        raise DoesNotCompile(f"the program in {sources} does not compile:\n{result.stdout}")
    raise Unreachable(f"Maven does not get its artifacts: {_first_error(result)}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"Maven was not done after {_TIMEOUT_S} s") from None


def _first_error(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "ERROR" in line]
    return lines[0][:300] if lines else f"exit code {result.returncode}"
