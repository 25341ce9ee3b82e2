"""Build and run the image, by docker or podman, or without a daemon.

`DaemonEngine` is docker or podman. `ChrootEngine` is for machines without a daemon: buildah builds the image and
`unshare` runs it in its own mount and process namespaces, with the entrypoint as process 1, the image's user and
environment, no capabilities, a read-only root, the volume, and a tmpfs on /tmp. It has no network namespace and no
cgroups: the broker listens on the machine's network, which the check reports.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

IMAGE = "localhost/reput-image-check"
UID = 10001
STOP_DEADLINE_S = 40.0
START_DEADLINE_S = 10.0
NO_MOUNTS: Mapping[str, Path] = {}


class CheckFailed(Exception):
    """The image does not work as required."""


class EngineError(Exception):
    """A builder or runtime failed; the text has the command and the end of its output."""


def run(command: Sequence[str], *, deadline_s: float = 1800.0, quiet: bool = True) -> str:
    """Run a command and return its stdout; EngineError with the end of its output if it fails."""
    try:
        done = subprocess.run(command, capture_output=quiet, text=True, timeout=deadline_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{shlex.join(command)}: {error}") from error
    if done.returncode:
        said = ((done.stdout or "") + (done.stderr or "")).strip().splitlines()
        raise EngineError("\n  ".join([f"{shlex.join(command)} ended with {done.returncode}", *said[-15:]]))
    return done.stdout or ""


def volume_of(config: Mapping[str, Any]) -> str:
    """Return the path of an image's only volume."""
    (path,) = config["Volumes"]
    return str(path)


class Container(ABC):
    """A running container of the image."""

    @abstractmethod
    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the image's user, as a health check would."""

    @abstractmethod
    def stop(self) -> int:
        """Send SIGTERM to process 1 and return its exit status."""

    @abstractmethod
    def wait(self, deadline_s: float) -> int:
        """Wait until process 1 has ended and return its exit status; raises EngineError at the deadline."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the processes and remove the container, but not the volume."""

    @abstractmethod
    def log(self) -> str:
        """Return what the process wrote to stdout and stderr."""


class Engine(ABC):
    """Builds one image at a time, then starts containers of it."""

    name: str
    left_out: list[str]

    @abstractmethod
    def build(self, repository: Path, base: str, target: str | None = None) -> str:
        """Build `IMAGE`, or a target, from the repository's Dockerfile; return a description of the base image."""

    @abstractmethod
    def image_config(self) -> dict[str, Any]:
        """Return the image's configuration: User, Env, Entrypoint, Cmd, Volumes, ..."""

    @abstractmethod
    def start(
        self,
        environment: Mapping[str, str],
        ports: Sequence[int],
        arguments: Sequence[str] = (),
        mounts: Mapping[str, Path] = NO_MOUNTS,
    ) -> Container:
        """Start a new container on the engine's one volume.

        Args:
            ports: published on loopback; without any, the container shares the machine's network.
            arguments: replace the image's own.
            mounts: directories of this machine by their path in the container, which cannot change them.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove the volume and the image."""


class DaemonEngine(Engine):
    """docker or podman."""

    NAME = "reput-image-check"
    """The name of the volume and the container."""

    def __init__(self, program: str) -> None:
        self.name = program
        self.left_out = []

    def build(self, repository: Path, base: str, target: str | None = None) -> str:
        """Pull the base image, build, and create the volume."""
        self.close()  # removes what an interrupted check has left
        run([self.name, "pull", base], deadline_s=600)
        # podman's default image format has no health check.
        formats = ["--format", "docker"] if self.name == "podman" else []
        targets = ["--target", target] if target else []
        run([self.name, "build", *formats, *targets, "--tag", IMAGE, str(repository)])
        run([self.name, "volume", "create", self.NAME])
        return f"{base}, pulled"

    def image_config(self) -> dict[str, Any]:
        """Return the daemon's description of the image."""
        inspected = json.loads(run([self.name, "image", "inspect", IMAGE]))[0]
        # docker has the health check in the configuration, podman next to it.
        return {"Healthcheck": inspected.get("Healthcheck"), **inspected["Config"]}

    def start(
        self,
        environment: Mapping[str, str],
        ports: Sequence[int],
        arguments: Sequence[str] = (),
        mounts: Mapping[str, Path] = NO_MOUNTS,
    ) -> Container:
        """Start a container, detached, read-only and without capabilities."""
        command = [
            self.name,
            "run",
            "--detach",
            "--name",
            self.NAME,
            "--read-only",
            "--cap-drop",
            "ALL",
            "--tmpfs",
            "/tmp:exec",
        ]
        volume = volume_of(self.image_config())
        command += ["--security-opt", "no-new-privileges", "--volume", f"{self.NAME}:{volume}"]
        for port in ports:
            command += ["--publish", f"127.0.0.1:{port}:{port}"]
        if not ports:
            command += ["--network", "host"]
        for target, source in mounts.items():
            command += ["--volume", f"{source}:{target}:ro"]
        for name, value in environment.items():
            command += ["--env", f"{name}={value}"]
        return _DaemonContainer(self.name, run([*command, IMAGE, *arguments]).strip())

    def close(self) -> None:
        """Remove container, volume and image; the base image stays."""
        for removal in (["rm", "--force", self.NAME], ["volume", "rm", self.NAME], ["image", "rm", IMAGE]):
            subprocess.run([self.name, *removal], capture_output=True, check=False)


class _DaemonContainer(Container):
    def __init__(self, program: str, container: str) -> None:
        self._program = program
        self._container = container

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return _captured([self._program, "exec", self._container, *command])

    def stop(self) -> int:
        run([self._program, "stop", "--time", str(int(STOP_DEADLINE_S)), self._container])
        return int(run([self._program, "wait", self._container]))

    def wait(self, deadline_s: float) -> int:
        return int(run([self._program, "wait", self._container], deadline_s=deadline_s))

    def kill(self) -> None:
        subprocess.run([self._program, "rm", "--force", self._container], capture_output=True, check=False)

    def log(self) -> str:
        done = _captured([self._program, "logs", self._container])
        return done.stdout + done.stderr


class ChrootEngine(Engine):
    """buildah and unshare; needs root, no daemon.

    Args:
        directory: for the image, the volume and the containers; `close` removes all but the files of `stand_in`.
        stand_in: called with the directory if the base image cannot be pulled; returns the path of a packed root
            file system to use instead.
    """

    def __init__(self, directory: Path, stand_in: Any) -> None:
        self.name = "buildah"
        self.left_out = ["a container runtime's own network and cgroups (unshare and chroot ran the image)"]
        self._directory = directory
        self._stand_in = stand_in
        self._volume = directory / "volume"
        self._config: dict[str, Any] = {}
        self._containers = 0

    def build(self, repository: Path, base: str, target: str | None = None) -> str:
        """Build with buildah, from a replacement if the base image cannot be pulled."""
        self.close()  # an interrupted check may have left a replacement, which is not the base image
        self._directory.mkdir(parents=True, exist_ok=True)
        source = f"{base}, pulled"
        try:
            self._buildah("pull", base, deadline_s=120)
        except EngineError as error:
            why = f"the published base image {base}: {str(error).splitlines()[-1].strip()}"
            self.left_out += [why] if why not in self.left_out else []
            source = f"a stand-in for {base}, made with debootstrap"
            container = self._buildah("from", "scratch").strip()
            self._buildah("add", "--quiet", container, str(self._stand_in(self._directory, base)), "/")
            self._buildah("commit", "--quiet", "--rm", container, f"localhost/{base}")
        with _network_settings(self._directory) as mounts:
            build = ["bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "--tag", IMAGE]
            targets = ["--target", target] if target else []
            self._buildah(*build, *targets, *mounts, str(repository), deadline_s=1800)
        inspected = json.loads(self._buildah("inspect", "--type", "image", IMAGE))
        self._config = inspected["Docker"]["config"]
        self._volume.mkdir(exist_ok=True)
        os.chown(self._volume, UID, UID)  # as docker does when it fills a new volume from the image
        return source

    def image_config(self) -> dict[str, Any]:
        """Return the configuration that buildah wrote."""
        return self._config

    def start(
        self,
        environment: Mapping[str, str],
        ports: Sequence[int],
        arguments: Sequence[str] = (),
        mounts: Mapping[str, Path] = NO_MOUNTS,
    ) -> Container:
        """Start the image's command as process 1 of its own namespaces, on the machine's network."""
        del ports  # the container shares the machine's network
        self._containers += 1
        container = self._buildah("from", "--pull-never", IMAGE).strip()
        root = self._buildah("mount", container).strip()
        variables = [*self._config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--bounding-set=-all"]
        user += ["--inh-caps=-all", "--no-new-privs", "env", "-i", *variables]
        log_path = self._directory / f"container-{self._containers}.log"
        script = _MOUNTS.format(
            root=shlex.quote(root),
            mounts="".join(_mount(root + target, source) for target, source in mounts.items()),
            volume=shlex.quote(str(self._volume)),
            kept=shlex.quote(volume_of(self._config)),
            workdir=shlex.quote(self._config["WorkingDir"]),
            command=shlex.join([*user, *self._config["Entrypoint"], *(arguments or self._config["Cmd"])]),
            chdir=_CHDIR,
        )
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        started = _ChrootContainer(process, user, log_path, lambda: self._buildah("rm", container))
        started.wait_confined()
        return started

    def close(self) -> None:
        """Remove image, containers and volume; the packed replacement is kept for the next time."""
        subprocess.run([*self._command, "rmi", "--all", "--force"], capture_output=True, check=False)
        for path in ("volume", "storage", "run"):
            shutil.rmtree(self._directory / path, ignore_errors=True)

    @property
    def _command(self) -> list[str]:
        storage = ["--root", str(self._directory / "storage"), "--runroot", str(self._directory / "run")]
        return ["buildah", *storage, "--storage-driver", "vfs"]

    def _buildah(self, *arguments: str, deadline_s: float = 600.0) -> str:
        return run([*self._command, *arguments], deadline_s=deadline_s)


# Runs inside unshare and becomes the image's process, as number 1. /etc/hosts is needed for the host name, which Java
# looks up.
_MOUNTS = """set -e
mount --bind {root} {root}
mount --bind {volume} {root}{kept}
{mounts}\
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
touch {root}/etc/hosts
mount --bind /etc/hosts {root}/etc/hosts
mount -o remount,bind,ro {root}
exec chroot {root} sh -c {chdir} sh {workdir} {command}
"""


def _mount(target: str, source: Path) -> str:
    quoted = shlex.quote(target)
    lines = f"mkdir -p {quoted}", f"mount --bind {shlex.quote(str(source))} {quoted}"
    return "\n".join((*lines, f"mount -o remount,bind,ro {quoted}\n"))


_CHDIR = shlex.quote('cd "$1"; shift; exec "$@"')


class _ChrootContainer(Container):
    def __init__(self, process: subprocess.Popen[bytes], user: list[str], log_path: Path, remove: Any) -> None:
        self._process = process
        self._user = user
        self._log_path = log_path
        self._remove = remove

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", "--target", str(self._process_one()), "--mount", "--pid", "--root", "--wd"]
        return _captured([*inside, *self._user, *command])

    def stop(self) -> int:
        os.kill(self._process_one(), signal.SIGTERM)
        try:
            return self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"SIGTERM did not end process 1 within {STOP_DEADLINE_S:.0f} s") from error

    def wait(self, deadline_s: float) -> int:
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"process 1 has not ended within {deadline_s:.0f} s") from error

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            time.sleep(0.2)  # the child of unshare dies with it, a moment later
        self._remove()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_confined(self) -> None:
        """Wait until process 1 has its own root: before that, `execute` would see the machine's."""
        deadline = time.monotonic() + START_DEADLINE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError, EngineError):
                if os.readlink(f"/proc/{self._process_one()}/root") != "/":
                    return
            time.sleep(0.01)

    def _process_one(self) -> int:
        pid = self._process.pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children:
                return int(children[0])
        raise EngineError(f"process 1 has ended\n  {self.log()[-2000:]}")


def _captured(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def _network_settings(directory: Path) -> Iterator[list[str]]:
    """Mount this machine's certificates and pip settings for the build; they are not stored in a layer."""
    mounts = []
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        mounts += ["--volume", f"{certificates}:{certificates}:ro"]
    wanted = {"cert", "index-url", "extra-index-url", "proxy", "timeout", "default-timeout", "trusted-host"}
    lines = []
    for line in run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        name = name.rpartition(".")[2].replace("_", "-").lower()
        if name in wanted:
            lines.append(f"{name.removeprefix('default-')} = {value.strip(chr(39))}")
    settings = directory / "pip.conf"
    try:
        if lines:
            settings.touch(mode=0o600)
            settings.write_text("\n".join(["[global]", *dict.fromkeys(lines)]) + "\n")
            mounts += ["--volume", f"{settings}:/etc/pip.conf:ro"]
        yield mounts
    finally:
        settings.unlink(missing_ok=True)
