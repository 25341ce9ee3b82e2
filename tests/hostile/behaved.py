"""A well-behaved client in its own process: one small put and one pull at fixed times, each latency noted.

A latency counts from when its request was due, so that waiting behind a slow one is not left out.
"""

from __future__ import annotations

import sys
import time

from reput_client.blocking import Message, Producer, PullConsumer

TOPIC = "behaved"


def main() -> None:
    """`python -m hostile.behaved ADDRESS RATE SECONDS`: print a latency in milliseconds a line."""
    address, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    latencies: list[float] = []
    message = Message(TOPIC, b"x" * 1024)
    with Producer(address, group="behaved") as producer, PullConsumer(address, group="behaved") as consumer:
        producer.send(message, ack="page_cache")
        due = time.monotonic()
        end = due + seconds
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            producer.send(message, ack="page_cache")
            consumer.pull(TOPIC, queue_id=0, offset=0, max_messages=8, wait_s=0.0)
            latencies.append(time.monotonic() - due)
            due += 1.0 / rate
    print("\n".join(f"{1e3 * latency:.3f}" for latency in latencies))


if __name__ == "__main__":
    main()
