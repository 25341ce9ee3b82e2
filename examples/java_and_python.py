"""A Java producer with a Python consumer, and with `--reverse` a Python producer with a Java consumer.

The Java side is RocketMQ's own client (java/src/main/java/orders/Orders.java), which Maven fetches once. A broker in a
temporary directory serves both; `--server` uses a running one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_broker.config.sections import StoreConfig
from reput_client.blocking import Consumer, Message, Producer

JAVA = Path(__file__).parent / "java"
BUILD = Path(__file__).parents[1] / "build" / "examples-java"


def main() -> int:
    """Send orders in one language and receive them in the other; return 0 if all arrive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reverse", action="store_true", help="Python sends, Java receives")
    parser.add_argument("--server", help="HOST:PORT of a running broker (default: start one)")
    parser.add_argument("--count", type=int, default=5, help="orders to send (5)")
    arguments = parser.parse_args()
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            print(f"error: {program} is not installed", file=sys.stderr)
            return 2
    classpath = build()
    with running_broker(arguments.server) as address:
        if arguments.reverse:
            produce(address, arguments.count)
            run_java(classpath, "consume", address, arguments.count)
        else:
            run_java(classpath, "produce", address, arguments.count)
            consume(address, arguments.count)
    return 0


def produce(address: str, count: int) -> None:
    """Send orders with Reput's client."""
    with Producer(address, group="python-shop") as producer:
        for number in range(count):
            order = Message("orders", f"order {number}".encode(), tag="paid", keys=[f"o-{number}"])
            print(f"Python sent order {number} as {producer.send(order).message_id}", flush=True)


def consume(address: str, count: int) -> None:
    """Receive orders with Reput's client."""
    with Consumer(address, group="python-billing", topic="orders", tags="paid", start="earliest") as consumer:
        for number, message in enumerate(consumer, start=1):
            print(f"Python received {message.body.decode()}, {message.message_id}", flush=True)
            if number == count:
                break


def build() -> str:
    """Compile the Java side; return its class path."""
    libraries = BUILD / "classpath"
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={libraries}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), *goals, f"-Dorders.build={BUILD}"], check=True)
    return os.pathsep.join((str(BUILD / "classes"), libraries.read_text()))


def run_java(classpath: str, verb: str, address: str, count: int) -> None:
    """Run the Java side until it has sent or received all orders."""
    BUILD.mkdir(parents=True, exist_ok=True)
    # RocketMQ's client writes its logs below its user's home. The other options make it start sooner.
    options = [f"-Duser.home={BUILD}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    subprocess.run(["java", *options, "-cp", classpath, "orders.Orders", verb, address, str(count)], check=True)


@contextmanager
def running_broker(address: str | None) -> Iterator[str]:
    """The address of a broker, started if none is given."""
    if address is not None:
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="reput-orders-") as directory:
        # Small files: with the defaults, the first message takes 1.4 GiB of disk.
        store = StoreConfig(commit_log_file_size=16 * 1024 * 1024, index=False)
        config = BrokerConfig(data_dir=Path(directory) / "store", port=0, store=store)
        with BackgroundBroker(config) as broker:
            yield broker.address


if __name__ == "__main__":
    sys.exit(main())
