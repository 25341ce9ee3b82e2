"""Fetch the other systems from Debian, PyPI and Maven Central into build/peers.

Nothing is installed on the machine and nothing needs root: Debian packages are unpacked, Python packages go into a
virtual environment, Java's jars into a directory. Downloads are kept for the next run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from peers.servers.base import Missing

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "peers"
_DEBIAN = ("redis-server", "redis-tools", "rabbitmq-server")
"""By name also what others of them need and may be installed: what is installed is not fetched with them."""
_ERLANG_ROOT = "ROOTDIR=/usr/lib/erlang"
_DEADLINE_S = 900
_OWN = ("benchmarks", "protocol", "client", "broker", "cli")


@functools.cache
def clients() -> Path:
    """Return the virtual environment with the clients of all systems; it is created if necessary.

    Raises:
        Missing: pip cannot install them.
    """
    environment = BUILD / "venv"
    root = HERE.parents[1]
    locked = (root / "requirements-runtime.lock", root / "requirements-columns.lock")
    wanted = (HERE / "requirements.txt", *locked)
    if not _is_fetched(environment, wanted):
        shutil.rmtree(environment, ignore_errors=True)
        _run([sys.executable, "-m", "venv", environment])
        pip: list[str | Path] = [
            environment / "bin/python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "install",
        ]
        for requirements in locked:
            _run([*pip, "--require-hashes", "-r", requirements])
        _run([*pip, "-r", wanted[0]])
        _note_fetched(environment, wanted)
    return environment


def clients_environment() -> dict[str, str]:
    """Return the variables with which a program in `clients` also finds Reput's packages and the benchmarks'."""
    root = HERE.parents[1]
    return {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(str(root / part) for part in _OWN)}


@functools.cache
def debian() -> Path:
    """Return the directory with the unpacked Debian packages and their dependencies.

    Raises:
        Missing: this is not Debian, or the download failed.
    """
    root = BUILD / "debian"
    if _is_fetched(root, ()):
        return root
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed; Debian's packages are what is measured")
    downloads = BUILD / "debian-packages"
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)
    root.mkdir(parents=True)
    downloads.mkdir()
    listed = _run(["apt-get", "-y", "--no-install-recommends", "--print-uris", "install", *_DEBIAN])
    names = [line.split()[1].split("_")[0] for line in listed.splitlines() if line.startswith("'")]
    missing = [name for name in _DEBIAN if name not in names]
    _run(["apt-get", "download", *names, *missing], directory=downloads)
    for package in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", package, root])
    for script in ("bin/erl", "bin/start", *_erts(root)):
        path = root / "usr/lib/erlang" / script
        path.write_text(path.read_text().replace(_ERLANG_ROOT, f"ROOTDIR={root}/usr/lib/erlang"))
    _note_fetched(root, ())
    return root


def _erts(root: Path) -> list[str]:
    erlang = root / "usr/lib/erlang"
    return [str(path.relative_to(erlang)) for path in erlang.glob("erts-*/bin/erl")]


def debian_environment() -> dict[str, str]:
    """Return the environment variables for programs of `debian`."""
    libraries = debian() / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    return {"LD_LIBRARY_PATH": str(libraries)}


@functools.cache
def jars(name: str) -> Path:
    """Return the directory with the jars of `NAME.pom.xml`.

    Raises:
        Missing: java or mvn is not installed, or Maven cannot get them.
    """
    java()
    if shutil.which("mvn") is None:
        raise Missing("mvn is not installed")
    pom = HERE / f"{name}.pom.xml"
    target = BUILD / name
    if not _is_fetched(target, (pom,)):
        shutil.rmtree(target, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        _run(["mvn", "--batch-mode", "--quiet", "-f", pom, *goal])
        _note_fetched(target, (pom,))
    return target


def java() -> str:
    """Return the program `java`.

    Raises:
        Missing: it is not installed.
    """
    program = shutil.which("java")
    if program is None:
        raise Missing("java is not installed")
    return program


def _note_fetched(target: Path, sources: tuple[Path, ...]) -> None:
    (target / ".fetched").write_text(_digest(sources))


def _is_fetched(target: Path, sources: tuple[Path, ...]) -> bool:
    note = target / ".fetched"
    return note.exists() and note.read_text() == _digest(sources)


def _digest(sources: tuple[Path, ...]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _run(arguments: list[str | Path], directory: Path | None = None) -> str:
    try:
        done = subprocess.run(
            arguments, cwd=directory, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{arguments[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Missing(f"{Path(arguments[0]).name} ended with {done.returncode}: {' '.join(said)[:300]}")
    return done.stdout


def client_version(package: str) -> str:
    """Return the version of a client's package in `clients`."""
    program = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    try:
        return _run([clients() / "bin/python", "-c", program, package]).strip()
    except Missing:
        return ""  # Reput's client is not in that environment
