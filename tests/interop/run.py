"""`python tests/interop/run.py`: every client against this broker, feature by feature; prints a table.

A client that cannot be fetched here is skipped by name. `--write` writes what was checked into the table of
docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from interop import proxy, table
from interop.catalogue import CLIENTS, FEATURES
from interop.checks import ALONE, CHECKS
from interop.scene import Scene
from support.maven import Unreachable

_SAYS = threading.Lock()


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client", action="append", choices=[*CLIENTS], help="only this one; repeatable")
    parser.add_argument("--feature", action="append", choices=[*FEATURES], help="only this one; repeatable")
    parser.add_argument("--jobs", type=int, default=3, help="checks at a time (3)")
    parser.add_argument("--keep", type=Path, help="keep logs and stores in this new directory")
    parser.add_argument(
        "--proxy", choices=["reput", "apache"], default="reput", help="whose, for gRPC clients (%(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/compatibility.md")
    arguments = parser.parse_args()
    clients, skipped = _available(arguments.client or [*CLIENTS], arguments.proxy)
    with tempfile.TemporaryDirectory(prefix="reput-interop-") as temporary:
        directory = arguments.keep or Path(temporary)
        results = run(clients, arguments.feature or [*FEATURES], directory, arguments.jobs, arguments.proxy)
    print(table.text(results, clients))
    for name, reason in skipped.items():
        print(f"skipped: {CLIENTS[name].title}: {reason}")
    failed, known = [], 0
    for (client, feature), result in results.items():
        kind = CLIENTS[client]
        is_known = feature in (
            kind.fails | (kind.fails_with_apache if arguments.proxy == "apache" else set())
        )
        known += is_known and not result.holds
        if is_known == result.holds:
            what = "passed, though the client is known to fail" if is_known else result.reason
            failed.append(f"{CLIENTS[client].title}: {FEATURES[feature]}: {what}")
    for line in failed:
        print(f"FAILED: {line}")
    count = sum(not result.is_lacking for result in results.values()) - len(failed) - known
    print(f"{count} passed, {len(failed)} failed, {known} by the client's fault, {len(skipped)} skipped")
    if arguments.write:
        table.write(results)
    return 1 if failed else 0


def _available(names: Sequence[str], proxy_kind: str) -> tuple[list[str], dict[str, str]]:
    """Fetch and build the clients; return those that are here, and why the others are not."""
    found, skipped = [], {}
    for name in names:
        try:
            CLIENTS[name].command()
            if CLIENTS[name].through_proxy and proxy_kind == "apache":
                proxy.command()
            found.append(name)
        except Unreachable as error:
            skipped[name] = str(error)
    return found, skipped


def run(
    clients: Sequence[str], features: Sequence[str], directory: Path, jobs: int, proxy_kind: str
) -> dict[tuple[str, str], table.Result]:
    """Check these features of these clients, some at a time; return the results by client and feature."""
    directory.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[str, str], table.Result] = {}
    (directory / "shared").mkdir()
    with Scene(directory / "shared", proxy=proxy_kind) as shared, ThreadPoolExecutor(jobs) as threads:
        shared.senders = clients

        def check(client: str, feature: str) -> None:
            results[client, feature] = _check(shared, client, feature, proxy_kind)

        wanted = [
            (client, feature)
            for feature in features
            for client in clients
            if feature not in CLIENTS[client].lacks
        ]
        for future in [threads.submit(check, *each) for each in wanted]:
            future.result()
    for client in clients:
        for feature in CLIENTS[client].lacks.intersection(features):
            results[client, feature] = table.Result(is_lacking=True)
    return results


def _check(shared: Scene, client: str, feature: str, proxy_kind: str) -> table.Result:
    started_at = time.monotonic()
    try:
        if feature in ALONE:
            directory = shared.directory.parent / f"{client}-{feature}"
            directory.mkdir()
            with Scene(directory, ALONE[feature](directory), proxy_kind) as own:
                CHECKS[feature](own, client)
        else:
            CHECKS[feature](shared, client)
        result = table.Result()
    except Exception as error:
        with _SAYS:
            traceback.print_exception(error)
        result = table.Result(reason=f"{type(error).__name__}: {error}".splitlines()[0])
    with _SAYS:
        outcome = "passed" if result.holds else "FAILED"
        print(f"{outcome:7}{client:12}{feature:17}{time.monotonic() - started_at:6.1f} s", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
