"""`make image-check`: build the image, run it as a container, and check it.

Uses docker or podman if a daemon answers and the base image can be pulled; otherwise buildah, unshare and, for the base
image, a replacement of debootstrap's. The container runs as 10001:10001 with a read-only root and no capabilities. It
must become healthy, refuse requests without a user, store messages and return them, exit with 0 on SIGTERM, and have
the messages again in a new container on the same volume, which has TLS as docs/security.md sets it up. The compose
files are checked too. Prints each step, and at the end what could not be run. With `--spark` the target `spark` is
built as well, and archives a topic twice in a container that is confined like the broker's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from compose_rules import compose_problems, merged
from image_engines import NO_MOUNTS, UID, CheckFailed, ChrootEngine, Container, DaemonEngine, Engine, EngineError, run
from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client import TLS, PermissionDenied, TlsRefused
from reput_client.blocking import Credentials, Message, Producer, PullConsumer

REPOSITORY = Path(__file__).resolve().parents[1]
DIRECTORY = REPOSITORY / "build" / "image-check"
PORTS = {"port": 10911, "name_port": 9876, "fast_port": 10909, "ha_port": 10912, "http_port": 10913}
PROXY_PORT = 8081
READY_DEADLINE_S = 60.0
SECURE = "/etc/reput/secure"
BODIES = [f"message {number} ".encode() * 50 for number in range(200)]
TOPIC = "image-check"
NEEDED = {"buildah": "buildah", "debootstrap": "debootstrap", "unshare": "util-linux", "nsenter": "util-linux"}
MESSAGES = 5_000
JOB_DEADLINE_S = 300.0
_LINES = [f"line {number} ".encode() * 20 for number in range(MESSAGES)]
PACKAGES = "ca-certificates,python3,python3-dev,python3-pip,python3-venv"


def main() -> int:
    """Run every check; return 0 if all that could be run passed, 1 if one failed, 2 if none could be run."""
    parser = argparse.ArgumentParser(description="Build the image, run it as a container, and check it.")
    parser.add_argument("--install", action="store_true", help="apt-get install what is missing (needs root)")
    parser.add_argument("--spark", action="store_true", help="build and run the target `spark` as well")
    arguments = parser.parse_args()
    not_run: list[str] = []
    try:
        check_compose(not_run)
        engine = choose_engine(install=arguments.install, not_run=not_run)
        if engine is None:
            return _finish(not_run, 2)
        try:
            check_image(engine)
            if arguments.spark:
                for what in check_spark_image(engine, REPOSITORY, base_image()):
                    _passed(what)
            else:
                not_run.append("the target `spark`: make image-check ARGS=--spark")
        finally:
            engine.close()
            not_run += engine.left_out
    except (CheckFailed, EngineError) as error:
        print(f"FAILED: {error}", flush=True)
        return _finish(not_run, 1)
    return _finish(not_run, 0)


def choose_engine(*, install: bool, not_run: list[str]) -> Engine | None:
    """Return the first available engine; None adds to `not_run` what is missing and how to install it."""
    base = base_image()
    for program in ("docker", "podman"):
        if shutil.which(program) is None:
            not_run.append(f"{program}: not installed")
            continue
        try:
            run([program, "info"], deadline_s=30)
            run([program, "pull", base], deadline_s=600)
        except EngineError as error:
            not_run.append(f"{program}: {str(error).splitlines()[-1].strip()}")
            continue
        return DaemonEngine(program)
    missing = sorted({package for program, package in NEEDED.items() if shutil.which(program) is None})
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        not_run.append(
            "the image: without docker or podman, building and running it needs root (sudo make image-check)"
        )
        return None
    if missing and install and shutil.which("apt-get"):
        print(f"  {' '.join(command)}", flush=True)
        run(command)
    elif missing:
        not_run.append(f"the image: {', '.join(missing)} missing; make image-check INSTALL=1, or {' '.join(command)}")
        return None
    return ChrootEngine(DIRECTORY, make_stand_in)


def base_image() -> str:
    """Return the base image of every stage of the Dockerfile."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for name, _ in stages} - {own for _, own in stages}
    if len(names) != 1:
        raise CheckFailed(f"the Dockerfile starts from {sorted(names)}; one pinned base was expected")
    return str(names.pop())


def check_image(engine: Engine) -> None:
    """Build the image, check its configuration, and run it twice."""
    started_at = time.monotonic()
    source = engine.build(REPOSITORY, base_image())
    _passed(f"built with {engine.name} from {source} in {time.monotonic() - started_at:.0f} s")
    check_config(engine.image_config())
    environment, ports = free_ports()
    address = f"127.0.0.1:{ports['port']}"
    with_container(engine, environment, ports, lambda container: first_run(container, address, ports.values()))
    environment |= variables_with_tls()
    with tempfile.TemporaryDirectory(prefix="reput-image-check-") as directory:
        secure = make_secure_files(Path(directory))
        with_container(
            engine,
            environment,
            ports,
            lambda container: second_run(container, f"localhost:{ports['port']}", secure),
            {SECURE: secure},
        )


def make_secure_files(directory: Path) -> Path:
    """Run the commands of docs/security.md that make certificate and secrets; return their directory."""
    page = (REPOSITORY / "docs" / "security.md").read_text()
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", page[page.index("\n### Certificate and secrets\n") :])
    for block in blocks[:2]:
        run(["sh", "-ec", f"cd {shlex.quote(str(directory))}\n{block}"])
    return directory / "secure"


def variables_with_tls() -> dict[str, str]:
    """Return the variables of the compose file's broker, with TLS and users."""
    files = (REPOSITORY / "docker-compose.yml", REPOSITORY / "conf" / "docker-compose.tls.yml")
    document = merged(*(yaml.safe_load(path.read_text()) for path in files))
    variables = document["services"]["reput"]["environment"]
    return {name: text for name, text in variables.items() if "$" not in text}


def with_container(
    engine: Engine,
    environment: Mapping[str, str],
    ports: Mapping[str, int],
    use: Callable[[Container], None],
    mounts: Mapping[str, Path] = NO_MOUNTS,
) -> None:
    """Start a container, wait until it is healthy, use it, stop it with SIGTERM, remove it."""
    container = engine.start(environment, [*ports.values()], mounts=mounts)
    try:
        wait_healthy(container)
        use(container)
        status = container.stop()
        if status != 0:
            raise CheckFailed(f"SIGTERM ended process 1 with {status}\n{container.log()[-2000:]}")
        _passed("SIGTERM drained it and ended it with 0")
    except (CheckFailed, EngineError, OSError):
        print(container.log()[-4000:], flush=True)
        raise
    finally:
        container.kill()


def wait_healthy(container: Container) -> None:
    """Run the image's HEALTHCHECK until it succeeds."""
    started_at = time.monotonic()
    while True:
        answer = container.execute("reput", "health")
        if answer.returncode == 0:
            _passed(f"healthy after {time.monotonic() - started_at:.1f} s: {answer.stdout.strip()}")
            return
        if time.monotonic() - started_at > READY_DEADLINE_S:
            raise CheckFailed(f"not healthy within {READY_DEADLINE_S:.0f} s: {answer.stdout}{answer.stderr}")
        time.sleep(0.2)


def first_run(container: Container, address: str, ports: Iterable[int]) -> None:
    """Check the confinement of process 1, put messages from outside, and pull them."""
    check_confinement(container, ports)
    secret = output_of(container, "cat", "/var/lib/reput/access/admin.secret").strip()
    user = Credentials("admin", secret)
    check_refused(address, None)
    output_of(container, "reput", "topic", "create", TOPIC, *server_inside(address))
    with Producer(address, group="image-check", credentials=user) as producer:
        receipts = [producer.send(Message(TOPIC, body), ack="flushed", queue_id=0) for body in BODIES]
    if [receipt.queue_offset for receipt in receipts] != [*range(len(BODIES))]:
        raise CheckFailed("the receipts are not offsets 0, 1, 2, ... of the queue")
    check_messages(address, user, None)
    _passed(f"{len(BODIES)} messages put at `flushed` and pulled back from outside, {address}")


def second_run(container: Container, address: str, secure: Path) -> None:
    """Check that a new container on the same volume has the messages, with TLS only."""
    tls, ca = TLS(ca=secure / "ca.pem"), ["--tls-ca", f"{SECURE}/ca.pem"]
    try:
        check_messages(address, Credentials("admin", (secure / "admin.secret").read_text().strip()), None)
    except TlsRefused:
        _passed("a client without TLS is refused")
    else:
        raise CheckFailed("a broker that requires TLS served a client without it")
    check_refused(address, tls)
    here = (*server_inside(address), *ca)
    output_of(container, "reput", "topic", "describe", TOPIC, *here)
    secret = ("--new-secret-file", f"{SECURE}/alice.secret")
    output_of(container, "reput", "user", "create", "alice", *secret, *here)
    rights = ("read", f"topic:{TOPIC}", "group:image-check")
    output_of(container, "reput", "acl", "allow", "alice", *rights, *here)
    check_messages(address, Credentials("alice", (secure / "alice.secret").read_text().strip()), tls)
    _passed(f"a new container on the same volume has all {len(BODIES)} messages, by TLS and for a new user")


def server_inside(address: str) -> list[str]:
    """Return the option with the broker's address for commands in its container."""
    return ["--server", f"127.0.0.1:{address.rpartition(':')[2]}"]


def output_of(container: Container, *command: str) -> str:
    """Run a command inside; raises CheckFailed unless it exits with 0."""
    answer = container.execute(*command)
    if answer.returncode:
        raise CheckFailed(f"`{shlex.join(command)}` in the container failed: {answer.stdout}{answer.stderr}")
    return answer.stdout


def check_refused(address: str, tls: TLS | None) -> None:
    """Check that a request without a user is refused."""
    try:
        with Producer(address, group="image-check", tls=tls) as producer:
            producer.send(Message(TOPIC, b""))
    except PermissionDenied:
        _passed("a request without a user is refused")
    else:
        raise CheckFailed("a message without a user was stored")


def check_messages(address: str, user: Credentials, tls: TLS | None) -> None:
    """Pull the whole queue and compare every body."""
    bodies: list[bytes] = []
    with PullConsumer(address, group="image-check", credentials=user, tls=tls) as consumer:
        while len(bodies) < len(BODIES):
            result = consumer.pull(TOPIC, queue_id=0, offset=len(bodies), max_messages=32, wait_s=5.0)
            if not result.messages:
                raise CheckFailed(f"{len(bodies)} of {len(BODIES)} messages are there, then {result.status}")
            bodies += [bytes(message.body) for message in result.messages]
    if bodies != BODIES:
        raise CheckFailed("the messages pulled differ from those put")


# Run inside the container. A child sees process 1 of its own namespace as /proc/1.
_FACTS = """
import json, os, shutil
from reput_protocol import kernel
sockets = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps({
    "uid": status["Uid"].split(), "gid": status["Gid"].split(), "bounding": int(status["CapBnd"], 16),
    "effective": int(status["CapEff"], 16), "command": open("/proc/1/cmdline").read().split("\\0")[:-1],
    "root_read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "volume_owner": os.stat("/var/lib/reput").st_uid, "kernel": kernel.FORM,
    "compilers": [name for name in ("cc", "gcc", "clang") if shutil.which(name)],
    "listening": [int(at[9:], 16) for _, at, _, state, *_ in sockets if state == "0A" and at.startswith("00000000:")]}))
"""


def check_confinement(container: Container, ports: Iterable[int]) -> None:
    """Check that process 1 is the broker, as 10001, without capabilities, on a read-only root, on every address.

    The image must have the compiled kernel and no compiler.
    """
    answer = container.execute("python3", "-c", _FACTS)
    if answer.returncode:
        raise CheckFailed(f"a command inside the container failed: {answer.stderr}")
    facts = json.loads(answer.stdout)
    expected = {"uid": [str(UID)] * 4, "gid": [str(UID)] * 4, "bounding": 0, "effective": 0}
    expected |= {"root_read_only": True, "volume_owner": UID, "kernel": "compiled", "compilers": []}
    wrong = {name: facts[name] for name, value in expected.items() if facts[name] != value}
    if wrong or "serve" not in facts["command"]:
        raise CheckFailed(f"process 1 is not confined as promised: {wrong or facts['command']}")
    unheard = {*ports} - {*facts["listening"]}
    if unheard:
        raise CheckFailed(f"nothing listens on 0.0.0.0 at {sorted(unheard)}; a published port would not be answered")
    _passed(f"process 1 is `{' '.join(facts['command'])}` as {UID}:{UID}, no capabilities, read-only root")
    _passed("the kernel is compiled, and the image has no compiler")


def check_config(config: Mapping[str, Any]) -> None:
    """Check the image's metadata against the Dockerfile's."""
    expected = {
        "User": f"{UID}:{UID}",
        "Entrypoint": ["reput"],
        "Cmd": ["serve", "-c", "/etc/reput/broker.toml"],
        "Volumes": {"/var/lib/reput": {}},
        "StopSignal": "SIGTERM",
    }
    wrong = {name: config.get(name) for name, value in expected.items() if config.get(name) != value}
    if {port.split("/")[0] for port in config.get("ExposedPorts", {})} != {
        str(port) for port in (*PORTS.values(), PROXY_PORT)
    }:
        wrong["ExposedPorts"] = config.get("ExposedPorts")
    if (config.get("Healthcheck") or {}).get("Test") != ["CMD", "reput", "health"]:
        wrong["Healthcheck"] = config.get("Healthcheck")
    labels = {name for name in config.get("Labels", {}) if name.startswith("org.opencontainers.image.")}
    if len(labels) < 5 or wrong:
        raise CheckFailed(f"the image's configuration is not as promised: {wrong or sorted(labels)}")
    _passed("user, entrypoint, volume, ports, stop signal, health check and labels are as promised")


def check_compose(not_run: list[str]) -> None:
    """Check docker-compose.yml against our rules, and by Compose if it is installed."""
    path = REPOSITORY / "docker-compose.yml"
    override = REPOSITORY / "conf" / "docker-compose.tls.yml"
    problems = [*compose_problems(path), *compose_problems(path, override)]
    if problems:
        raise CheckFailed("docker-compose.yml: " + "; ".join(problems))
    _passed("docker-compose.yml, alone and with TLS, keeps the rules of tools/compose_rules.py")
    missing = "Compose is not installed"
    for command in (["docker", "compose"], ["podman-compose"], ["docker-compose"]):
        try:
            version = run([*command, "version", "--short"], deadline_s=30).strip()
        except EngineError:
            continue
        if command == ["docker-compose"] and version.startswith("1."):
            missing = f"docker-compose is {version}, and the file needs 2 or later"
            continue
        run([*command, "--file", str(path), "config", "--quiet"], deadline_s=60)
        run([*command, "--file", str(path), "--file", str(override), "config", "--quiet"], deadline_s=60)
        _passed(f"`{' '.join(command)} config` accepts it")
        return
    not_run.append(f"`docker compose config`: {missing}")


def free_ports() -> tuple[dict[str, str], dict[str, int]]:
    """Return environment and ports: those of the image, or free ports if they are in use."""
    if all(_is_free(port) for port in PORTS.values()):
        return {}, PORTS
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = {name: probe.getsockname()[1] for name, probe in zip(PORTS, probes, strict=True)}
    for probe in probes:
        probe.close()
    environment = {f"REPUT_{name.upper()}": str(port) for name, port in ports.items()}
    print(f"  the image's own ports are in use here; running it on {', '.join(map(str, ports.values()))}")
    return environment, ports


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("0.0.0.0", port)).close()
    except OSError:
        return False
    return True


def _passed(what: str) -> None:
    print(f"ok      {what}", flush=True)


def _finish(not_run: list[str], status: int) -> int:
    for what in not_run:
        print(f"not run {what}")
    verdicts = {
        0: "everything that could be run here passed",
        1: "the image check FAILED",
        2: "the image was not built here",
    }
    print(verdicts[status], flush=True)
    return status


def check_spark_image(engine: Engine, repository: Path, base: str) -> Iterator[str]:
    """Build the target and archive a topic twice; yields the steps that have passed.

    The container is confined like the broker's. It shares the machine's network and keeps the archive on its volume;
    the second run must have nothing to copy.

    Raises:
        CheckFailed: a job did not exit with 0, or did not copy all messages.
        EngineError: the target could not be built or started.
    """
    started_at = time.monotonic()
    engine.build(repository, base, "spark")
    yield f"the target `spark` built with {engine.name} in {time.monotonic() - started_at:.0f} s"
    with tempfile.TemporaryDirectory(prefix="reput-image-check-") as directory:
        broker = BackgroundBroker(BrokerConfig(data_dir=Path(directory) / "store", port=0, http_port=None))
        broker.start()
        try:
            with Producer(broker.address, group="image-check") as producer:
                producer.send_many(TOPIC, _LINES)
            first, second = (_archive(engine, broker.address) for _ in range(2))
        finally:
            broker.stop()
    if first["rows_in_archive"] != MESSAGES or (second["batches"], second["rows_in_archive"]) != (0, MESSAGES):
        raise CheckFailed(f"{MESSAGES} messages archived twice gave {first}, then {second}")
    yield f"{MESSAGES} messages archived by a container of it, none again by a second on the same volume"


def _archive(engine: Engine, address: str) -> dict[str, Any]:
    """Run the archive job in a new container and return its last line."""
    arguments = ["pipeline", "archive", "--server", address, "--topic", TOPIC, "--to", "/archive"]
    container = engine.start({}, [], [*arguments, "--master", "local[2]"])
    try:
        status = container.wait(JOB_DEADLINE_S)
        log = container.log()
    finally:
        container.kill()
    if status != 0:
        raise CheckFailed(f"the archive job ended with {status}\n{log[-3000:]}")
    said: dict[str, Any] = json.loads([line for line in log.splitlines() if line.startswith("{")][-1])
    return said


def make_stand_in(directory: Path, base: str) -> Path:
    """Return the packed root file system that replaces `base`; it is made in `directory` unless it exists.

    A minimal Debian with Python, with the paths of the official Python images. That checks the Dockerfile's steps, the
    user, the files and the entrypoint, but not the published base image.

    Args:
        base: the name of an official Python image on Debian, such as python:3.11.13-slim-bookworm.

    Raises:
        EngineError: debootstrap failed, or its Python does not have the version in the name.
    """
    version, _, suite = base.partition(":")[2].partition("-slim-")
    version = ".".join(version.split(".")[:2])  # Debian's has another patch version
    packed = directory / f"stand-in-{version}-{suite}.tar"
    if packed.exists():
        return packed
    root = directory / "stand-in"
    shutil.rmtree(root, ignore_errors=True)
    print(f"  making a stand-in for {base} with debootstrap, a minute or two", flush=True)
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root), apt_mirror(suite)])
    try:
        if not (root / f"usr/bin/python{version}").exists():
            raise EngineError(f"Debian {suite} has no Python {version}; the stand-in cannot be made")
        for name in ("python", "python3"):
            (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/python{version}")
        partial = packed.with_suffix(".partial")
        run(["tar", "--create", "--numeric-owner", "--directory", str(root), "--file", str(partial), "."])
        partial.rename(packed)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return packed


def apt_mirror(suite: str) -> str:
    """Return the address of apt's mirror for `suite`; raises EngineError if there is none."""
    for line in run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]).splitlines():
        codename, _, address = line.partition(" ")
        if codename == suite and address:
            return address.strip()
    raise EngineError(f"apt knows no mirror for Debian {suite}; on this machine no stand-in can be made")


if __name__ == "__main__":
    sys.exit(main())
