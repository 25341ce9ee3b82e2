"""archive, replay, archive again: what `make soak KIND=round-trip` does with a million messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin
from round_trip.compare import compared, distinct_ids
from round_trip.messages import QUEUES, fill
from support.pipeline_jobs import Run, runner
from support.stores import opened, small_options

MESSAGES = 3000


@pytest.fixture
def run(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


def test_nothing_is_lost_or_changed_there_and_back(
    run: Run, tmp_path: Path, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    store = opened(
        small_options(tmp_path / "s", commit_log_file_size=1 << 20, consume_queue_entries=1000, index_enabled=False)
    )
    fill(store, MESSAGES, 1)
    assert store.close()
    first, second = tmp_path / "first", tmp_path / "second"
    ran = run("archive", "--path", tmp_path / "s", "--to", first, "--batch-messages", 2000)
    assert (ran.code, ran.result["rows"], ran.result["batches"]) == (0, MESSAGES, 2), ran.err
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        for topic, queues in QUEUES.items():
            admin.create_topic(topic, queues=queues)
    replay = ("replay", "--archive", first, "--server", broker.address)
    assert run(*replay, "--dry-run").result["rows"] == MESSAGES
    for _ in range(2):  # as after a kill: all is sent again, and published once
        ran = run(*replay)
        assert (ran.code, ran.result["rows"], ran.result["batches"]) == (0, MESSAGES, 2), ran.result
    assert run("archive", "--server", broker.address, "--to", second).result["rows"] == MESSAGES

    counts = compared(first, second)
    assert len(counts) == sum(QUEUES.values())
    assert [sum(column) for column in zip(*counts.values(), strict=True)] == [MESSAGES] * 3
    assert distinct_ids(second) == MESSAGES

    # A single flag that is another one is seen.
    path = min(second.rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    at = table.schema.get_field_index("flag")
    flags = [table.column(at)[0].as_py() + 1, *table.column(at).to_pylist()[1:]]
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(flags, pa.int32())), path)
    assert sum(each.equal for each in compared(first, second).values()) == MESSAGES - 1
