"""Place orders with tasks in an outbox, kill programs, workers, relays, broker and connections, and judge the runs.

    python tests/outbox/run.py [--orders 10000] [--database sqlite | postgresql] [--pause SECONDS] [--seed N]

There is a kill of the broker for some of each other kind, at least one of each.

Django's ORM writes an order and its task in one transaction; a tenth of them is rolled back. For PostgreSQL its server
has to be installed (Debian: postgresql); it is started in a directory of its own. Exit code 0 if each committed order
has its task run and succeed, none that was rolled back has, and each repetition follows a kill of the worker.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from outbox.judge import Run, Verdict, judge
from outbox.row_locks import check_django, check_sqlalchemy
from reput_client.blocking import Admin, ReceivedMessage
from support.broker_process import BrokerProcess, free_port

_TESTS = Path(__file__).resolve().parents[1]
_PROGRAMS = 3
_WORKERS = 2
_LEFT = 0.02
"""The part of the tasks that run after the last kill."""
_DRAIN_S = 60.0
_TOPIC = "django-tasks-default"
_RESULTS = "django-results"


class Scene:
    """The processes, and the files in which they say what they have done."""

    def __init__(self, place: Path, address: str, database: dict[str, str]) -> None:
        self._runs, self._rolled_back = place / "runs", place / "rolled-back"
        for each in (self._runs, self._rolled_back):
            each.mkdir()
        self._log = (place / "processes.log").open("ab")
        self.environ = {
            **os.environ,
            **database,
            "DJANGO_SETTINGS_MODULE": "outbox.orders.settings",
            "PYTHONPATH": os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "ORDERS_SERVER": address,
            "ORDERS_RUNS": str(self._runs),
            "ORDERS_ROLLED_BACK": str(self._rolled_back),
        }
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._programs = 0
        self.killed: dict[int, float] = {}  # workers by pid, and when they were dead

    def django(self, *arguments: str) -> list[str]:
        """Return a command of Django."""
        return [sys.executable, "-m", "django", *arguments]

    def call(self, *arguments: str) -> None:
        """Run a command of Django to its end."""
        subprocess.run(self.django(*arguments), env=self.environ, check=True, stdout=self._log)

    def start(self, name: str, *command: str) -> None:
        """Start a process; the name of a program that places orders is followed by a number of each start."""
        self._commands[name] = [*command]
        if name.startswith("program"):
            self._programs += 1
            command = (*command, f"p{self._programs}")
        self._processes[name] = subprocess.Popen(command, env=self.environ, stdout=self._log, stderr=self._log)

    def kill(self, name: str) -> None:
        """Kill a process, and start it again."""
        process = self._processes[name]
        process.kill()
        process.wait()
        if name.startswith("worker"):
            self.killed[process.pid] = time.time()
        self.start(name, *self._commands[name])

    def names(self, kind: str) -> list[str]:
        """Return the names of the processes of a kind."""
        return [name for name in self._processes if name.startswith(kind)]

    def end(self, kind: str) -> None:
        """Kill the processes of a kind for good."""
        for name in self.names(kind):
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def check(self) -> None:
        """Raise if a process has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended with {process.returncode}; see {self._log.name}")

    def runs(self) -> list[Run]:
        """Return what the tasks have recorded."""
        found = []
        for path in self._runs.iterdir():
            for line in path.read_text().splitlines():
                reference, at = line.split(" ")
                found.append(Run(reference, int(path.name), float(at)))
        return found

    def rolled_back(self) -> set[str]:
        """Return the orders that programs have rolled back."""
        return {line for path in self._rolled_back.iterdir() for line in path.read_text().splitlines()}

    def close(self) -> None:
        """Kill all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._log.close()


@contextmanager
def postgresql(place: Path) -> Iterator[dict[str, str]]:
    """Start a server in a directory; yield what names it and its database."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs and shutil.which("initdb") is None:
        sys.exit("PostgreSQL is not installed: apt-get install postgresql")
    initdb, pg_ctl = (str(programs[-1] / name) if programs else name for name in ("initdb", "pg_ctl"))
    data, sockets, port = place / "postgresql", place / "sockets", free_port()
    sockets.mkdir()
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if user:
        place.chmod(0o755)
        for each in (sockets, data):
            each.mkdir(exist_ok=True)
            shutil.chown(each, "postgres")
    quiet = {"stdout": subprocess.DEVNULL, "check": True}
    subprocess.run([*user, initdb, "-A", "trust", "-U", "postgres", "-D", str(data)], **quiet)  # type: ignore[call-overload]
    # The server is not killed, only its connections are.
    options = f"-c fsync=off -c listen_addresses='' -c unix_socket_directories={sockets} -c port={port}"
    server = [*user, pg_ctl, "-D", str(data), "-w", "-l", str(sockets / "log")]
    subprocess.run([*server, "-o", options, "start"], **quiet)  # type: ignore[call-overload]
    try:
        yield {"ORDERS_POSTGRESQL": str(sockets), "ORDERS_DATABASE": "postgres", "PGPORT": str(port)}
    finally:
        subprocess.run([*server, "-m", "immediate", "stop"], **quiet)  # type: ignore[call-overload]


@contextmanager
def sqlite(place: Path) -> Iterator[dict[str, str]]:
    """Yield what names a database file."""
    yield {"ORDERS_DATABASE": str(place / "orders.sqlite3")}


def soak(
    place: Path, *, orders: int, database: str, pause_s: float, invisible_s: float, often: int, seed: int
) -> tuple[Verdict, Counter[str]]:
    """Run it all in a directory; return the verdict, and how many kills there were of each kind."""
    chance, kills = random.Random(seed), Counter[str]()
    kinds = ["program", "worker", "relay", *(["connection"] if database == "postgresql" else [])]
    next_kinds: list[str] = []
    broker_kills: list[float] = []
    with ExitStack() as stack:
        environ = stack.enter_context({"sqlite": sqlite, "postgresql": postgresql}[database](place))
        broker = stack.enter_context(BrokerProcess(place / "broker"))
        scene = Scene(place, broker.address, environ)
        stack.callback(scene.close)
        os.environ.update(scene.environ)
        count, references, cut = tables()
        scene.call("migrate", "--run-syncdb", "--verbosity", "0")
        if database == "postgresql":
            check_django()
            check_sqlalchemy(f"postgresql+psycopg://postgres@/postgres?host={environ['ORDERS_POSTGRESQL']}")
            print("a relay passes over rows that another one is sending", flush=True)
        for number in range(_WORKERS):
            worker = ("reput_worker", "--concurrency", "4", "--invisible", str(invisible_s))
            scene.start(f"worker {number}", *scene.django(*worker))
        scene.start("relay", *scene.django("reput_relay"))
        for number in range(_PROGRAMS):
            scene.start(f"program {number}", sys.executable, str(_TESTS / "outbox/orders/place.py"))
        began = time.monotonic()
        while (left := count() - len(scene.runs())) > orders * _LEFT or count() < orders or len(kills) <= len(kinds):
            time.sleep(pause_s * chance.uniform(0.5, 1.5))
            scene.check()
            if count() >= orders and kills["program"]:  # each kind is killed once at least
                scene.end("program")
            next_kinds = next_kinds or ["broker", *chance.sample(kinds * often, len(kinds) * often)]
            kind = next_kinds.pop()
            if kind == "program" and not scene.names(kind):
                continue
            kills[kind] += 1
            if kind == "broker":
                broker_kills.append(time.time())
                broker.kill()
                broker.start()
                broker.wait_ready()
            elif kind == "connection":
                cut()
            else:
                scene.kill(chance.choice(scene.names(kind)))
            seconds = time.monotonic() - began
            print(f"{seconds:6.1f} s: {count()} orders, {left} have not run, {kind} killed", flush=True)
        scene.end("program")
        waiting = {*references()}
        until = time.monotonic() + _DRAIN_S
        while waiting and time.monotonic() < until:
            waiting -= {run.reference for run in scene.runs()}
            time.sleep(0.2)
        time.sleep(2 * invisible_s)  # what would run again, has
        verdict = judge(
            references(),
            scene.rolled_back(),
            scene.runs(),
            killed=scene.killed,
            broker_kills=broker_kills,
            invisible_s=invisible_s,
        )
        with Admin(broker.address) as admin:
            tasks = Counter(message.message_id for message in messages(admin, _TOPIC))
            states = [json.loads(message.body) for message in messages(admin, _RESULTS)]
        successful = {state["id"] for state in states if state["status"] == "SUCCESSFUL"}
        verdict.violations.extend(
            f"task {task} is stored {number} times" for task, number in tasks.items() if number > 1
        )
        verdict.violations.extend(f"task {task} has not succeeded" for task in tasks.keys() - successful)
        return verdict, kills


def messages(admin: Admin, topic: str) -> Iterator[ReceivedMessage]:
    """Yield the messages of a topic."""
    for queue, bounds in admin.topic_stats(topic).offset_table.items():
        at = bounds.min_offset
        while at < bounds.max_offset:
            found = admin.fetch_messages(topic, queue.queue_id, at, bounds.max_offset)
            yield from found.messages
            at = found.next_offset


def tables() -> tuple[Callable[[], int], Callable[[], set[str]], Callable[[], None]]:
    """Return what counts the orders, what returns their references, and what cuts all other connections."""
    import django

    django.setup()
    from django.db import connection

    from outbox.orders.models import Order

    def cut() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def references() -> set[str]:
        return set(Order.objects.values_list("reference", flat=True))

    return Order.objects.count, references, cut


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=10_000, help="committed orders (default: 10000)")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between kills (default: 4)")
    parser.add_argument("--invisible", type=float, default=5.0, help="of the workers (default: 5)")
    parser.add_argument(
        "--often", type=int, default=4, help="kills of each other kind for one of the broker (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reput-outbox-") as directory:
        place = Path(directory)
        if options.database == "postgresql":
            install_driver(place)
        print(f"seed {options.seed}", flush=True)
        verdict, kills = soak(
            place,
            orders=options.orders,
            database=options.database,
            pause_s=options.pause,
            invisible_s=options.invisible,
            often=options.often,
            seed=options.seed,
        )
    print(f"kills: {', '.join(f'{number} {kind}' for kind, number in sorted(kills.items()))}")
    print(
        f"{verdict.orders} orders committed, {verdict.rolled_back} rolled back; runs repeated: {verdict.after_worker} "
        f"after a kill of the worker, {verdict.after_broker} after one of the broker; "
        f"{len(verdict.violations)} violations"
    )
    for each in verdict.violations[:20]:
        print(f"  {each}")
    return int(bool(verdict.violations))


def install_driver(place: Path) -> None:
    """Install the driver of PostgreSQL for this run, unless it is there."""
    if importlib.util.find_spec("psycopg") is None:
        target = str(place / "driver")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", target, "psycopg[binary]>=3.2"]
        subprocess.run(pip, check=True)
        sys.path.append(target)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), target]))


if __name__ == "__main__":
    sys.exit(main())
