"""`make bench KIND=replication`: what a slave costs; all processes on this machine, medians of several rounds.

- `replicated` with one slave, both syncing, as a ratio to `flushed` without a slave, in the same run.
- RocketMQ's own benchmark against SYNC_MASTER with one slave, of Reput and of Apache RocketMQ.
- Replication lag at a steady rate: from when a byte is in the master's log to when the slave has it on its disk.
- The time from `kill -9` of an elected master, or a hand-over, to the first acknowledged put at the next one; etcd
  elects.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Final

from failover import ROUNDS, failover
from peers import java_benchmark
from peers.java_benchmark import Questions
from reput_cli.bench_clients import BenchPlan, host_facts, run_producer
from reput_client import AckLevel
from reput_client.blocking import Producer
from reput_client.errors import StoreUnavailable
from reput_protocol.codes import RequestCode
from reput_protocol.commands.replica import ReplicaState
from reput_protocol.record.message import Message
from run import BATCH, SIZE, Row, new_topic, produce
from servers import RunningBroker, broker, free_port
from tables import aligned

_READY_S: Final = 30.0
_LOOK_S: Final = 0.02
_ASK_S: Final = 0.002
"""Asking takes time of the brokers, which they need: a lag is at most this much too long."""
_RATE_MB: Final = 100
_LAG_IN_FLIGHT: Final = 16
_DEADLINE_S: Final = 60.0
_JAVA_PROGRAMS: Final = java_benchmark.PROGRAMS[1:3]
"""64 threads, and blocks of 64."""


def main() -> None:
    """Run every measurement and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of messages")
    parser.add_argument("--only", choices=MEASURES, help="run only this measurement")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    rows = [
        row
        for name, measure in MEASURES.items()
        if arguments.only in (None, name)
        for row in measure(arguments.rounds, arguments.scale)
    ]
    if arguments.json:
        print(json.dumps({"host": host_facts(), "results": [asdict(row) for row in rows]}))
        return
    head = ("bodies of 1 KiB, one slave", "unit", "reput", "baseline", "ratio", "spread", "notes")
    print("\n".join(aligned([head, *(row.cells() for row in rows)])))
    facts = ", ".join(f"{name} {value}" for name, value in host_facts().items())
    print(f"\nmedians of {arguments.rounds} rounds, {time.perf_counter() - started_at:.0f} s; {facts}")


# -- compared with no slave ----------------------------------------------------------------------------------------


def against_alone(rounds: int, scale: float) -> list[Row]:
    """Compare `replicated` with `flushed` without a slave; both brokers run all the time, one is busy."""
    plan = BenchPlan("", "", 0, SIZE)
    kinds = {
        "64 in flight": replace(plan, messages=int(20_000 * scale), in_flight=64, warmup=500),
        "blocks of 64, 8 in flight": replace(
            plan, messages=int(200_000 * scale) // BATCH * BATCH, in_flight=8, batch=BATCH, warmup=10 * BATCH
        ),
    }
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    with broker("sync") as alone, replicated_pair("sync") as (master, _):
        for number in range(rounds):
            for name, kind in kinds.items():
                rates = {}
                both = ((master, AckLevel.REPLICATED), (alone, AckLevel.FLUSHED))
                for server, ack in both if number % 2 else both[::-1]:
                    plan = replace(kind, server=server.address, topic=new_topic(server), ack=ack)
                    rates[ack] = produce(plan).rate
                pairs[name].append((rates[AckLevel.REPLICATED], rates[AckLevel.FLUSHED]))
    rows = [Row.of_pairs(f"{name}, replicated, sync flush", "msg/s", found) for name, found in pairs.items()]
    for row in rows:
        row.baseline_is = "flushed, no slave"
    return rows


@contextmanager
def replicated_pair(flush: str) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    """Run a master and its slave until the block ends; they are in sync when it begins."""
    ha_port = str(free_port())
    with broker(flush, HA_PORT=ha_port, HA__IN_SYNC_REPLICAS="2") as master:
        own = {"HA__ROLE": "SLAVE", "HA__MASTER": master.address, "HA__MASTER_HA_ADDRESS": f"127.0.0.1:{ha_port}"}
        with broker(flush, BROKER_ID="1", **own) as slave:
            _wait_until_in_sync(master)
            yield master, slave


def _wait_until_in_sync(master: RunningBroker) -> None:
    deadline = time.perf_counter() + _READY_S
    with Producer(master.address) as producer:
        while True:
            try:
                producer.send(Message("first", b""), ack="replicated")
                return
            except StoreUnavailable:
                if time.perf_counter() > deadline:
                    raise
                time.sleep(0.1)


# -- compared with Apache RocketMQ ---------------------------------------------------------------------------------


def against_rocketmq(rounds: int, scale: float) -> list[Row]:
    """Run RocketMQ's Java benchmark against Reput and RocketMQ, both SYNC_MASTER with one slave and sync flush."""
    measured = java_benchmark.measure(
        rounds=rounds, seconds=max(1.0, 4.0 * scale), durability="replicated", programs=_JAVA_PROGRAMS
    )
    for note in measured.notes:
        print(note, file=sys.stderr)
    rows = []
    for title, rates in measured.rates.items():
        pairs = list(zip(rates["Reput"], rates["Apache RocketMQ"], strict=True))
        rows.append(Row.of_pairs(f"{title}, SYNC_MASTER, sync flush", "msg/s", pairs))
        rows[-1].baseline_is = "Apache RocketMQ"
    return rows


# -- lag -----------------------------------------------------------------------------------------------------------


def lag(rounds: int, scale: float) -> list[Row]:
    """Measure how long it takes until a slave has what its master has, while a producer sends 100 MB/s."""
    rate = _RATE_MB * 1_000_000 / SIZE
    messages = max(1, int(rate * 5 * scale) // BATCH) * BATCH
    medians, worst, reached = [], [], []
    with replicated_pair("async") as (master, slave):
        for _ in range(rounds):
            plan = BenchPlan(master.address, new_topic(master), messages, SIZE, ack="page_cache")
            plan = replace(plan, batch=BATCH, in_flight=_LAG_IN_FLIGHT, many=True, rate=rate)
            lags, megabytes = _lags_under(plan, master, slave)
            medians.append(1000 * statistics.median(lags))
            worst.append(1000 * max(lags))
            reached.append(megabytes)
    row = Row(
        f"lag at {statistics.median(reached):.0f} MB/s, blocks of {BATCH}, async flush",
        "ms",
        round(statistics.median(medians), 1),
        facts={"worst": round(max(worst), 1), "asked for MB/s": _RATE_MB},
    )
    return [row]


def _lags_under(plan: BenchPlan, master: RunningBroker, slave: RunningBroker) -> tuple[list[float], float]:
    """Return lags in seconds, and the MB/s that the producer reached."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply_async(run_producer, (plan, 0))
        lags: list[float] = []
        with Questions(master.address) as at_master, Questions(slave.address) as at_slave:
            begin = _end_of(at_master)
            while not result.ready():
                end, since = _end_of(at_master), time.perf_counter()
                if end == begin:
                    continue  # the producer has not begun
                while _end_of(at_slave) < end:
                    if time.perf_counter() - since > _DEADLINE_S:
                        raise SystemExit("no figure: the slave does not follow")
                    time.sleep(_ASK_S)
                lags.append(time.perf_counter() - since)
                time.sleep(_LOOK_S)
        sent = result.get()
    return lags, sent.message_bytes / sent.duration_s / 1e6


def _end_of(questions: Questions) -> int:
    _, body = questions.ask(RequestCode.QUERY_REPLICA_STATE, {})
    return ReplicaState.from_json(body).max_offset


MEASURES: dict[str, Callable[[int, float], list[Row]]] = {
    "alone": against_alone,
    "rocketmq": against_rocketmq,
    "lag": lag,
    "failover": lambda _rounds, scale: failover(max(1, round(ROUNDS * scale))),
}


if __name__ == "__main__":
    main()
