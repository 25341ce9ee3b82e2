"""`python tests/interop/run.py`: every client against this broker, feature by feature; prints tables.

gRPC clients are checked through Reput's proxy and then through RocketMQ's, and the two are compared: the exit code is 1
if a feature holds only through RocketMQ's. A client that cannot be fetched here is skipped by name. `--write` writes
what was checked into the tables of docs/compatibility.md.
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
from interop.catalogue import CLIENTS, COLUMNS, FEATURES, PROXIES, Column
from interop.checks import ALONE, CHECKS
from interop.scene import Scene
from support.maven import Unreachable

_SAYS = threading.Lock()
_TABLES = (table.REMOTING, table.GRPC)


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grpc", action="store_true", help="only the table of the gRPC clients")
    parser.add_argument("--client", action="append", choices=[*CLIENTS], help="only this one; repeatable")
    parser.add_argument("--feature", action="append", choices=[*FEATURES], help="only this one; repeatable")
    parser.add_argument("--jobs", type=int, default=3, help="checks at a time (3)")
    parser.add_argument("--keep", type=Path, help="keep logs and stores in this new directory")
    parser.add_argument("--proxy", choices=[*PROXIES], help="gRPC clients through this one only")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/compatibility.md")
    arguments = parser.parse_args()
    proxies = [arguments.proxy] if arguments.proxy else [*PROXIES]
    columns = [
        column
        for column in COLUMNS
        if column.client in (arguments.client or CLIENTS)
        and (column.proxy in proxies if column.proxy else not arguments.grpc)
    ]
    features = arguments.feature or [*FEATURES]
    # All clients send what each of them reads in the feature `fields`.
    senders, skipped = _available((arguments.client if "fields" not in features else None) or [*CLIENTS])
    if "apache" in proxies:
        try:
            proxy.command()
        except Unreachable as error:
            columns = [column for column in columns if column.proxy != "apache"]
            skipped["RocketMQ's proxy"] = str(error)
    columns = [column for column in columns if column.client in senders]
    with tempfile.TemporaryDirectory(prefix="reput-interop-") as temporary:
        directory = arguments.keep or Path(temporary)
        results = run(columns, features, senders, directory, arguments.jobs)
    for made in _TABLES:
        if any((column, feature) in results for column in made.columns for feature in made.features):
            print(made.text(results))
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    failed = _report(results)
    print(f"{len(skipped)} skipped")
    if arguments.write:
        for made in _TABLES:
            made.write(results)
    return 1 if failed else 0


def _report(results: table.Results) -> bool:
    """Print what has failed and the summary; return whether it is our fault."""
    failed: list[str] = []
    passed = known = theirs = 0
    for (column, feature), result in results.items():
        fails = feature in CLIENTS[column.client].fails
        line = f"{column.title}: {FEATURES[feature]}: {result.reason}"
        if result.is_lacking:
            continue
        if column.proxy == "apache" and not result.holds:
            theirs += 1
            print(f"fails: {line}")
        elif fails and not result.holds:
            known += 1
        elif fails and column.proxy != "apache":
            failed.append(f"{line}: passed, though the client is known to fail")
        elif result.holds:
            passed += 1
        else:
            failed.append(line)
    found = table.compare(results)
    worse = [f"{CLIENTS[client].title}: {FEATURES[feature]}" for client, feature in found.worse]
    for line in failed:
        print(f"FAILED: {line}")
    for line in worse:
        print(f"WORSE than through RocketMQ's proxy: {line}")
    print(f"{passed} passed, {len(failed)} failed, {known} by the client's fault, {theirs} through RocketMQ's proxy")
    if found.same or found.better or found.worse:
        print(
            f"Reput's proxy compared with RocketMQ's {proxy.VERSION}: {len(found.better)} features better, "
            f"{len(found.same)} equal, {len(found.worse)} worse"
        )
    return bool(failed or worse)


def _available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Fetch and build the clients; return those that are here, and by their titles why the others are not."""
    found, skipped = [], {}
    for name in names:
        try:
            CLIENTS[name].command()
            found.append(name)
        except Unreachable as error:
            skipped[CLIENTS[name].title] = str(error)
    return found, skipped


def run(
    columns: Sequence[Column], features: Sequence[str], senders: Sequence[str], directory: Path, jobs: int
) -> dict[tuple[Column, str], table.Result]:
    """Check these features in these columns, some at a time, one proxy after the other; return the results.

    Args:
        columns: each with a client that is here.
        features: by name; of those that a client does not offer the result says so.
        senders: clients that send what is read in the feature `fields`.
        directory: for stores and logs.
        jobs: how many checks run at a time.
    """
    results: dict[tuple[Column, str], table.Result] = {}
    for kind in PROXIES:
        chosen = [column for column in columns if (column.proxy or "reput") == kind]
        wanted = [(column, feature) for feature in features for column in chosen]
        if not wanted:
            continue
        shared_directory = directory / kind / "shared"
        shared_directory.mkdir(parents=True)
        with Scene(shared_directory, proxy=kind) as shared, ThreadPoolExecutor(jobs) as threads:
            shared.senders = senders

            def check(column: Column, feature: str, kind: str = kind, shared: Scene = shared) -> None:
                results[column, feature] = _check(shared, column.client, feature, kind)

            running = []
            for column, feature in wanted:
                if feature in CLIENTS[column.client].lacks:
                    results[column, feature] = table.Result(is_lacking=True)
                else:
                    running.append(threads.submit(check, column, feature))
            for each in running:
                each.result()
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
        took_s = time.monotonic() - started_at
        through = proxy_kind if CLIENTS[client].through_proxy else ""
        print(f"{outcome:7}{client:12}{through:7}{feature:17}{took_s:6.1f} s", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
