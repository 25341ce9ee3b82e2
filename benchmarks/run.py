"""`make bench`: the broker against a bare echo server, same frames, same run, medians of several rounds.

Bodies differ, messages are built inside the timed part, the consumer reads every body and every tag. One client
process, one server process. Each line names load and durability; the ratio is against the echo server beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from echo_client import EchoClient
from reput_cli.bench_clients import BenchPlan, run_consumer, run_producer
from reput_cli.bench_payload import Payloads
from reput_cli.bench_report import host_facts
from reput_client.blocking import Admin
from servers import RunningBroker, broker, echo_server

TOPIC = "bench"
SIZE = 1024
BATCH = 64
IN_FLIGHT = 64
FILE_MIB = 16
Row = dict[str, Any]


def main() -> None:
    """Run every measurement and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scale",
        type=float,
        default=0.3,
        help="share of the full number of messages (0.3; 1 is a million in memory)",
    )
    parser.add_argument("--only", choices=sorted(MEASURES), help="one measurement alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name, measure in MEASURES.items():
        if arguments.only not in (None, name):
            continue
        row = measure(arguments.rounds, arguments.scale)
        rows.append(row)
        if not arguments.json:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    print(json.dumps({"host": host_facts(), "results": rows}) if arguments.json else host_facts())


def latency(rounds: int, scale: float) -> Row:
    """One message in flight, page_cache under ASYNC_FLUSH."""
    count = int(4_000 * scale)

    def measure(address: str, echo: EchoClient, _: RunningBroker) -> tuple[float, float]:
        plan = BenchPlan(address, TOPIC, count, SIZE, ack="page_cache", warmup=300)
        ours = statistics.median(run_producer(plan, 0).latencies_s)
        return ours * 1e6, statistics.median(echo.one_in_flight(Payloads(SIZE), count)) * 1e6

    ours, theirs, ratio = _against_echo(rounds, measure)
    return {
        "measure": "one in flight, page_cache, async flush, p50 us",
        "reput": ours,
        "echo": theirs,
        "ratio": ratio,
    }


def pipelined_singles(rounds: int, scale: float) -> Row:
    """One message a frame, many frames in flight, no linger."""
    count = int(100_000 * scale)

    def measure(address: str, echo: EchoClient, _: RunningBroker) -> tuple[float, float]:
        plan = BenchPlan(address, TOPIC, count, SIZE, ack="page_cache", in_flight=256, warmup=2_000)
        return run_producer(plan, 0).rate, echo.pipelined(Payloads(SIZE), count, 256, 1)

    ours, theirs, ratio = _against_echo(rounds, measure)
    return {
        "measure": "pipelined singles, page_cache, async flush, msg/s",
        "reput": ours,
        "echo": theirs,
        "ratio": ratio,
    }


def blocks(rounds: int, scale: float) -> Row:
    """Blocks of 64 messages, several on the way; each message an object."""
    return _blocks("blocks of 64", rounds, scale, many=False)


def many(rounds: int, scale: float) -> Row:
    """The same blocks made of bodies by `send_many`."""
    return _blocks("blocks of 64 by send_many", rounds, scale, many=True)


def _blocks(name: str, rounds: int, scale: float, *, many: bool) -> Row:
    count = int(400_000 * scale) // BATCH * BATCH

    def measure(address: str, echo: EchoClient, _: RunningBroker) -> tuple[float, float]:
        plan = BenchPlan(
            address,
            TOPIC,
            count,
            SIZE,
            ack="page_cache",
            in_flight=8,
            batch=BATCH,
            many=many,
            warmup=6_400,
        )
        return run_producer(plan, 0).rate, echo.pipelined(Payloads(SIZE), count, 16, BATCH)

    ours, theirs, ratio = _against_echo(rounds, measure)
    return {
        "measure": f"{name}, page_cache, async flush, msg/s",
        "reput": ours,
        "echo": theirs,
        "ratio": ratio,
    }


def pull(rounds: int, scale: float) -> Row:
    """Pull what blocks have put; every body and tag is read."""
    count = int(400_000 * scale) // BATCH * BATCH

    def measure(address: str, echo: EchoClient, _: RunningBroker) -> tuple[float, float]:
        run_producer(BenchPlan(address, TOPIC, count, SIZE, ack="page_cache", batch=BATCH), 0)
        plan = BenchPlan(address, TOPIC, count, SIZE, queues=(0, 1, 2, 3))
        return run_consumer(plan, 0).rate, echo.pipelined(Payloads(SIZE), count, 16, BATCH)

    ours, theirs, ratio = _against_echo(rounds, measure)
    return {
        "measure": "pull of blocks, lazy messages, msg/s",
        "reput": ours,
        "echo (put)": theirs,
        "ratio": ratio,
    }


def flushed_share(rounds: int, scale: float) -> Row:
    """64 sends in flight: flushed against page_cache under SYNC_FLUSH, and how many acks one sync released."""
    count = int(40_000 * scale)
    flushed, cached, acks = [], [], []
    for _ in range(rounds):
        with broker("sync") as server:
            _create_topic(server)
            plan = BenchPlan(
                server.address, TOPIC, count, SIZE, ack="flushed", in_flight=IN_FLIGHT, warmup=1_000
            )
            flushed.append(run_producer(plan, 0).rate)
            released = server.metric("reput_flush_batch_messages_sum")
            acks.append(released / max(1.0, server.metric("reput_flush_batch_messages_count")))
        with broker("sync") as server:
            _create_topic(server)
            plan = BenchPlan(
                server.address, TOPIC, count, SIZE, ack="page_cache", in_flight=IN_FLIGHT, warmup=1_000
            )
            cached.append(run_producer(plan, 0).rate)
    pairs = [a / b for a, b in zip(flushed, cached, strict=True)]
    return {
        "measure": "64 in flight, sync flush, msg/s",
        "flushed": round(statistics.median(flushed)),
        "page_cache": round(statistics.median(cached)),
        "ratio": round(statistics.median(pairs), 2),
        "acks a sync": round(statistics.median(acks), 1),
    }


def file_waits(rounds: int, scale: float) -> Row:
    """Puts that waited for a file of the log, while the log crosses from file to file as fast as it can be written."""
    count = int(400_000 * scale) // BATCH * BATCH
    waits, puts, files = [], [], []
    for _ in range(rounds):
        with broker("async", STORE__COMMIT_LOG_FILE_SIZE=f"{FILE_MIB}MiB") as server:
            _create_topic(server)
            plan = BenchPlan(server.address, TOPIC, count, SIZE, ack="page_cache", in_flight=8, batch=BATCH)
            run_producer(plan, 0)
            waits.append(server.metric("reput_log_file_waits_total"))
            puts.append(count // BATCH)
            files.append(server.metric("reput_storage_end_offset_bytes") / (FILE_MIB << 20))
    return {
        "measure": f"puts that waited for a file of the log, blocks of 64, async flush, {FILE_MIB} MiB files",
        "waited": round(statistics.median(waits)),
        "most": round(max(waits)),
        "puts": puts[0],
        "files": round(statistics.median(files)),
    }


def idle(rounds: int, scale: float) -> Row:
    """An empty broker that nobody talks to."""
    starts, memory_mib, cpu = [], [], []
    for _ in range(rounds):
        with broker("sync") as server:
            starts.append(server.start_s)
            time.sleep(1.0)
            before, since = server.cpu_s(), time.perf_counter()
            time.sleep(max(2.0, 5.0 * scale))
            cpu.append((server.cpu_s() - before) / (time.perf_counter() - since))
            memory_mib.append(server.memory_mib("VmRSS"))
    return {
        "measure": "idle",
        "start to ready s": round(statistics.median(starts), 2),
        "RSS MiB": round(statistics.median(memory_mib), 1),
        "share of a core": round(statistics.median(cpu), 4),
    }


def memory(_: int, scale: float) -> Row:
    """Private memory after a million messages in and out."""
    count = int(1_000_000 * scale) // BATCH * BATCH
    with broker("async") as server:
        _create_topic(server)
        run_producer(BenchPlan(server.address, TOPIC, count, SIZE, ack="page_cache", batch=BATCH), 0)
        run_consumer(BenchPlan(server.address, TOPIC, count, SIZE, queues=(0, 1, 2, 3)), 0)
        return {
            "measure": "after messages in and out",
            "messages": count,
            "RssAnon MiB": round(server.memory_mib("RssAnon"), 1),
        }


def _against_echo(
    rounds: int, measure: Callable[[str, EchoClient, RunningBroker], tuple[float, float]]
) -> tuple[float, float, float]:
    """Measure broker and echo in turn; return both medians and the median of the pairs' ratios."""
    pairs = []
    with echo_server() as echo_address:
        for _ in range(rounds):
            client = EchoClient(echo_address, TOPIC)
            with broker("async") as server:
                _create_topic(server)
                pairs.append(measure(server.address, client, server))
            client.close()
    ours, theirs = (round(statistics.median(column), 1) for column in zip(*pairs, strict=True))
    return ours, theirs, round(statistics.median(a / b for a, b in pairs), 2)


def _create_topic(server: RunningBroker) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(TOPIC, queues=4)


MEASURES: dict[str, Callable[[int, float], Row]] = {
    "latency": latency,
    "singles": pipelined_singles,
    "blocks": blocks,
    "many": many,
    "pull": pull,
    "flushed": flushed_share,
    "file-waits": file_waits,
    "idle": idle,
    "memory": memory,
}


if __name__ == "__main__":
    main()
