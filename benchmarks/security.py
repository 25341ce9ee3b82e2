"""`make bench KIND=security`: what signatures and TLS cost, with RocketMQ's own benchmark and Java client.

The same programs run against Reput and Apache RocketMQ: plain, signed, with TLS, and both. Each broker runs twice, with
users and without; both take connections with TLS and without, with the same certificate. The cost of a signature is the
difference in the broker's processor time to requests of the same kind without one, which has the longer header in it;
a second table has the checks by themselves.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NamedTuple, cast

from peers import fetch
from peers.java_benchmark import PROGRAMS, Fault, Measured, Program, Target, fill, run, run_consumer
from peers.servers import reput, rocketmq
from peers.servers.base import Missing, Security
from reput_broker.access.control import AccessControl
from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.config.sections import AccessConfig
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client, Request
from reput_protocol.codes import ROCKETMQ_VERSION, RequestCode
from reput_protocol.errors import ProtocolError
from reput_protocol.rights import Rule, rule_of
from reput_protocol.wire.header import Header, HeaderType
from reput_protocol.wire.signature import Credentials, signed_by
from tables import NOISY_SPREAD, aligned, figure, spread_of

_USER: Final = Credentials("bench", "a-secret-for-the-benchmark")
_PRODUCERS: Final = PROGRAMS[:3]
_CONSUMER: Final = Program("Consumer, pulls of 32 of 1 KiB", "Consumer", (), 32)
_BACKLOG: Final = "backlog"
_BROKERS: Final = ("Reput", "Apache RocketMQ")
_CHECKS: Final = 20_000
_CHECK_ROUNDS: Final = 7


class Mode(NamedTuple):
    """What a client does besides sending requests."""

    name: str
    is_signed: bool
    has_tls: bool


MODES: Final = (
    Mode("plain", False, False),
    Mode("signed", True, False),
    Mode("TLS", False, True),
    Mode("signed, TLS", True, True),
)


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a run counts (3)")
    parser.add_argument("--backlog", type=int, default=500_000, help="messages to consume at most in a run")
    parser.add_argument("--only", default="", help="only programs whose title contains this")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    programs = [one for one in (*_PRODUCERS, _CONSUMER) if arguments.only in one.title]
    try:
        measured = measure(programs, arguments.rounds, arguments.seconds, arguments.backlog)
    except (Missing, Fault) as error:
        raise SystemExit(f"error: {error}") from error
    print("\n".join(table(measured, programs)))
    print()
    print("\n".join(aligned([("us of processor time a check", "1 KiB", "64 KiB", "1 MiB"), *checks()])))
    print(
        f"\nmedians of up to {arguments.rounds} rounds of {arguments.seconds:g} s, "
        f"{time.perf_counter() - started_at:.0f} s; "
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"Apache RocketMQ {rocketmq.version()}; acknowledged from the page cache (asynchronous flush)"
    )
    for note in measured.notes:
        print(f"- {' '.join(note.split())}")


# -- against both brokers ------------------------------------------------------------------------------------------


def measure(programs: Sequence[Program], rounds: int, seconds: float, backlog: int) -> Measured:
    """Run every program in every mode against both brokers, with the modes of a broker one after the other.

    Raises:
        Missing: Java, Maven, RocketMQ or openssl.
    """
    measured = Measured()
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as made, _targets(Path(made)) as targets:
        directory = Path(made)
        if _CONSUMER in programs:
            for (_, mode), target in targets.items():
                if not mode.has_tls:  # the same broker as with TLS
                    fill(PROGRAMS[2], target, _BACKLOG, backlog, directory)
        try:
            for number in range(rounds):
                for program in programs:
                    for broker in _BROKERS[:: -1 if number % 2 else 1]:
                        _round(measured, program, broker, targets, directory, number, seconds)
                print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:  # the rounds so far have figures
            measured.notes.append(f"stopped in round {number + 1}")
    return measured


def _round(
    measured: Measured,
    program: Program,
    broker: str,
    targets: dict[tuple[str, Mode], Target],
    directory: Path,
    number: int,
    seconds: float,
) -> None:
    """Run a program in all modes; a round counts only if all have a figure."""
    found = {}
    for mode in MODES[:: -1 if number % 2 else 1]:
        target = targets[broker, mode]
        name = f"java{number}-{PROGRAMS.index(program) if program in PROGRAMS else 'c'}-{MODES.index(mode)}"
        try:
            if program is _CONSUMER:
                found[mode] = run_consumer(program, target, _BACKLOG, name, directory, seconds)
            else:
                found[mode] = run(program, target, name, directory, seconds)
        except (Fault, OSError, ProtocolError) as fault:
            measured.notes.append(f"{program.title}, {broker}, {mode.name}: no figures for a round: {fault}")
            return
    for mode, (rate, cpu_s) in found.items():
        measured.add(program, _key(broker, mode), rate, cpu_s)


def _key(broker: str, mode: Mode) -> str:
    return f"{broker}, {mode.name}"


@contextmanager
def _targets(directory: Path) -> Iterator[dict[tuple[str, Mode], Target]]:
    """Run the brokers; yields how the clients of each mode reach them."""
    fetch.jars("rocketmq-example")
    security = _security(directory)
    found = {}
    with ExitStack() as stack:
        for is_signed in (False, True):
            user = _USER if is_signed else None
            own = replace(security, user=user)
            part = directory / ("users" if is_signed else "open")
            for name in ("reput", "rocketmq"):
                (part / name).mkdir(parents=True)
            ours = stack.enter_context(reput.start(part / "reput", "page_cache", own))
            names, theirs = stack.enter_context(rocketmq.start(part / "rocketmq", "page_cache", own))
            for mode in MODES:
                if mode.is_signed == is_signed:
                    found[_BROKERS[0], mode] = Target(ours, ours.address, user, mode.has_tls)
                    found[_BROKERS[1], mode] = Target(theirs, names.address, user, mode.has_tls)
        yield found


def _security(directory: Path) -> Security:
    """Make the certificate of all brokers."""
    if shutil.which("openssl") is None:
        raise Missing("openssl is not installed; it makes the certificate of the brokers")
    certificate, key = directory / "broker.pem", directory / "broker.key"
    made: list[str | Path] = ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    done = subprocess.run(["openssl", "req", "-x509", *kind, *made], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"openssl ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return Security(certificate, key)


def table(measured: Measured, programs: Sequence[Program]) -> list[str]:
    """Return the lines of the table, and append notes about noisy figures.

    Ratios and differences are the medians of those of the rounds; a difference is to the mode without a signature.
    """
    head = ["", ""]
    for name in ("Reput", "RocketMQ"):
        head += [f"{name} msg/s", "of plain", "CPU us a request", "to plain", "signature us"]
    rows: list[Sequence[str]] = [head]
    for program in programs:
        figures = measured.rates.get(program.title, {})
        for mode in MODES:
            row = [program.title if mode is MODES[0] else "", mode.name]
            for broker in _BROKERS:
                row += _cells(measured, program, broker, mode)
            rows.append(row)
        measured.notes += [
            f"{program.title}, {name}: noisy: rates differ by {spread_of(rates):.0%} of their median"
            for name, rates in figures.items()
            if spread_of(rates) > NOISY_SPREAD
        ]
    return aligned(rows)


def _cells(measured: Measured, program: Program, broker: str, mode: Mode) -> list[str]:
    rates = measured.rates.get(program.title, {}).get(_key(broker, mode))
    if rates is None:
        return [""] * 5
    costs = _costs(measured, program, broker, mode)
    plain_rates = measured.rates[program.title][_key(broker, MODES[0])]
    plain_costs = _costs(measured, program, broker, MODES[0])
    cells = [figure(round(statistics.median(rates))), "", figure(round(statistics.median(costs))), "", ""]
    if mode is not MODES[0]:
        cells[1] = f"{_median(rates, plain_rates, lambda own, plain: own / plain):.2f}"
        cells[3] = f"{_median(costs, plain_costs, lambda own, plain: own - plain):+.0f}"
    if mode.is_signed:
        unsigned = next(other for other in MODES if not other.is_signed and other.has_tls is mode.has_tls)
        unsigned_costs = _costs(measured, program, broker, unsigned)
        cells[4] = f"{_median(costs, unsigned_costs, lambda own, other: own - other):.1f}"
    return cells


def _costs(measured: Measured, program: Program, broker: str, mode: Mode) -> list[float]:
    """Return the broker's processor time of a request in microseconds, by round."""
    return [cpu * program.request_messages for cpu in measured.cpu[program.title][_key(broker, mode)]]


def _median(ours: list[float], theirs: list[float], compare: Callable[[float, float], float]) -> float:
    return statistics.median(compare(one, other) for one, other in zip(ours, theirs, strict=True))


# -- the checks by themselves --------------------------------------------------------------------------------------


def checks() -> Iterator[tuple[str, ...]]:
    """Time Reput's checks of a Java producer's request, by size of the body; the best of several rounds."""
    kinds: tuple[tuple[str, bool, tuple[Rule, ...]], ...] = (
        ("signature of an administrator", True, ()),
        ("signature and rights of another user", False, (rule_of("topic:*", ["write"]),)),
    )
    for title, is_admin, rules in kinds:
        user = User(_USER.user, _USER.secret, is_admin=is_admin, rules=rules)
        yield title, *(f"{1e6 * _check_s(user, size):.1f}" for size in (1 << 10, 1 << 16, 1 << 20))


def _check_s(user: User, size: int) -> float:
    body = memoryview(bytes(size))
    fields = {
        "a": "benchmark_producer", "b": "BenchmarkTest", "c": "TBW102", "d": "4", "e": "2", "f": "0",
        "g": f"{time.time_ns() // 1_000_000}", "h": "0", "j": "0", "k": "false", "m": "false", "n": "broker-a",
        "i": "UNIQ_KEY\x017F00000100002A139A5545B1A4B00000\x02WAIT\x01true\x02TAGS\x01tag0\x02",
    }  # fmt: skip
    ext = signed_by(_USER, fields, body, version=ROCKETMQ_VERSION)
    header = Header(int(RequestCode.SEND_MESSAGE_V2), 1, 0, ext=ext, version=ROCKETMQ_VERSION)
    counters = Counters()
    client = cast("Client", SimpleNamespace(peer="127.0.0.1:1", principal=None, signatures=None, unauthenticated=0))
    traffic = counters.requests[HeaderType.BINARY, header.code]
    count = max(10, _CHECKS * (1 << 10) // (size + (1 << 13)))
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as directory:
        file = UserFile(Path(directory) / "users.json")
        access = AccessControl(file, Users().with_user(user), file.state(), AccessConfig(), counters)
        best = float("inf")
        for _ in range(_CHECK_ROUNDS):
            requests = [Request(client, HeaderType.BINARY, header, body, 0.0, traffic) for _ in range(count)]
            started_at = time.process_time()
            for request in requests:
                access.authenticate(request)
                access.authorize(request)
            best = min(best, (time.process_time() - started_at) / count)
    return best


if __name__ == "__main__":
    main()
