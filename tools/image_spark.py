"""Check the image's target `spark`: a container archives a topic of a broker on this machine.

The container is confined like the broker's: 10001:10001, no capabilities, read-only root. It shares the machine's
network and keeps the archive on its volume; a second run must have nothing to copy.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from image_engines import CheckFailed, Engine
from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client.blocking import Producer

TOPIC = "image-check"
MESSAGES = 5_000
JOB_DEADLINE_S = 300.0
_BODIES = [f"line {number} ".encode() * 20 for number in range(MESSAGES)]


def check_spark_image(engine: Engine, repository: Path, base: str) -> Iterator[str]:
    """Build the target and archive a topic twice; yields the steps that have passed.

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
                producer.send_many(TOPIC, _BODIES)
            first, second = (_archive(engine, broker.address) for _ in range(2))
        finally:
            broker.stop()
    if first["rows_in_archive"] != MESSAGES or (second["batches"], second["rows_in_archive"]) != (
        0,
        MESSAGES,
    ):
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
