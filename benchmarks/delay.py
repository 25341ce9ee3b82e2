"""`make bench KIND=delay`: how late delayed messages are delivered, with many of them pending.

One broker process under SYNC_FLUSH and one client process. All messages are sent before the first is due. Their times
are random within some seconds, or, for a delay level, as far apart as they were sent. Lateness is measured until the
copy is put, and until a waiting consumer has received it, including sync and long poll.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from reput_cli.bench_clients import host_facts
from reput_client.blocking import Message, Producer, PullConsumer
from reput_protocol.record.delays import DELAY_LEVELS_MS
from servers import RunningBroker, broker

TOPIC = "later"
QUEUES = 4
SIZE = 256
CHUNK = 2_000
LEVEL = 4
"""30 s: enough to send everything before the first is due."""
_HEAD_BYTES = 8
Row = dict[str, Any]


def main() -> None:
    """Run every measurement and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--spread", type=float, default=20.0, help="seconds within which the messages are due")
    parser.add_argument("--lead", type=float, help="seconds until the first is due (1/4,000 s a message)")
    parser.add_argument("--only", choices=sorted(MEASURES), help="run only this measurement")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name, measure in MEASURES.items():
        if arguments.only in (None, name):
            with broker("sync") as running:
                lead_s = arguments.lead or arguments.messages / 4_000
                rows.append(measure(running, arguments.messages, arguments.spread, lead_s))
            if not arguments.json:
                print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    print(json.dumps({"host": host_facts(), "results": rows}) if arguments.json else host_facts())


def times_of_their_own(running: RunningBroker, count: int, spread_s: float, lead_s: float) -> Row:
    """Measure messages that are due at random times, all sent before the first is due."""
    begin_ms = int((time.time() + 3.0 + lead_s) * 1000)
    rng = random.Random(1)
    due_ms = [begin_ms + rng.randrange(int(spread_s * 1000)) for _ in range(count)]
    messages = (
        Message(TOPIC, body(number), deliver_at=datetime.fromtimestamp(due / 1000, UTC))
        for number, due in enumerate(due_ms)
    )
    seconds, _ = send(running, messages, count)
    left_s = begin_ms / 1000 - time.time()
    row = {"measure": "times of their own", "messages": count, "due_in_s": spread_s, "sent_per_s": int(count / seconds)}
    if left_s < 0:
        row["note"] = f"sending took {-left_s:.1f} s too long: some were due before all were sent; use a longer --lead"
    return row | watch(running, due_ms)


def one_level(running: RunningBroker, count: int, spread_s: float, lead_s: float) -> Row:
    """Measure messages of one delay level, which are due at the rate at which they were sent."""
    del spread_s, lead_s
    messages = (Message(TOPIC, body(number), delay_level=LEVEL) for number in range(count))
    seconds, stored_ms = send(running, messages, count)
    row = {"measure": f"delay level {LEVEL}", "messages": count, "due_in_s": round(seconds, 1)}
    row["sent_per_s"] = int(count / seconds)
    return row | watch(running, [stored + DELAY_LEVELS_MS[LEVEL - 1] for stored in stored_ms])


def body(number: int) -> bytes:
    """Return a body that contains the message's number."""
    return number.to_bytes(_HEAD_BYTES, "big") + bytes(SIZE - _HEAD_BYTES)


def send(running: RunningBroker, messages: Iterable[Message], count: int) -> tuple[float, list[int]]:
    """Send all messages; return the seconds it took, and the store time of each in ms."""
    stored_ms: list[int] = []
    started_at = time.perf_counter()
    with Producer(running.address, timeout_s=30.0) as producer:
        part: list[Message] = []
        for message in messages:
            part.append(message)
            if len(part) == CHUNK or len(stored_ms) + len(part) == count:
                posted = [producer.post(each, ack="page_cache") for each in part]
                stored_ms += [each.result().store_timestamp_ms for each in posted]
                part = []
    return time.perf_counter() - started_at, stored_ms


def watch(running: RunningBroker, due_ms: Sequence[int]) -> Row:
    """Consume every message; return how late they were, and the broker's processor time."""
    put_late, seen_late = array("d"), array("d")
    seen: set[int] = set()
    lock = threading.Lock()
    waiting = running.status()["delayed"]
    cpu = running.cpu_s()

    def consume(queue_id: int) -> None:
        with PullConsumer(running.address, group="late", timeout_s=60.0) as consumer:
            offset = 0
            while len(seen) < len(due_ms):
                result = consumer.pull(TOPIC, queue_id, offset, max_messages=512, wait_s=1.0)
                now_ms = time.time() * 1000
                offset = result.next_begin_offset
                with lock:
                    for message in result.messages:
                        number = int.from_bytes(message.body[:_HEAD_BYTES], "big")
                        assert number not in seen, "delivered twice"
                        seen.add(number)
                        put_late.append(message.store_timestamp_ms - due_ms[number])
                        seen_late.append(now_ms - due_ms[number])

    threads = [threading.Thread(target=consume, args=(queue_id,)) for queue_id in range(QUEUES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "waiting": waiting["waiting"] if isinstance(waiting, dict) else None,
        "never_early": min(put_late) >= 0,
        "put_late_ms": percentiles(put_late),
        "seen_late_ms": percentiles(seen_late),
        "broker_cpu_s": round(running.cpu_s() - cpu, 1),
        "broker_private_mib": round(running.memory_mib("RssAnon")),
    }


def percentiles(values: Sequence[float]) -> str:
    """Return percentiles as text."""
    cuts = statistics.quantiles(values, n=1000)
    return f"p50 {cuts[499]:.1f} p99 {cuts[989]:.1f} p99.9 {cuts[998]:.1f} max {max(values):.1f}"


MEASURES = {"times": times_of_their_own, "level": one_level}


if __name__ == "__main__":
    main()
