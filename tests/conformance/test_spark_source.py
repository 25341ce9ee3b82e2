"""The offline Spark source over a directory that Apache RocketMQ wrote: every message of every queue, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance import checks, workload
from conformance.apache import Apache
from conformance.counts import COUNTS
from conformance.test_store_handover import apache_puts
from reput_protocol.record.record import decode_record
from support.store_samples import hashes

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

pytestmark = pytest.mark.process


def rows_of(path: Path, **given: str) -> list[dict[str, Any]]:
    """What a batch over all topics gives, without a Spark session."""
    from reput_pipeline.source.offline import OfflineStore, plan
    from reput_pipeline.source.options import parse_source_options
    from reput_pipeline.source.ranges import NOTHING_NARROWED
    from reput_pipeline.source.tasks import read_task
    from support.pipeline_jobs import arrow_schema_of

    every = {"path": str(path), "subscribePattern": ".*", "includeSystemTopics": "true"}
    options = parse_source_options({**every, **given}, streaming=False)
    with OfflineStore(str(path)) as store:
        partitions = plan(store, options, NOTHING_NARROWED)
    schema = arrow_schema_of(options)
    return [
        row
        for partition in partitions
        for batch in read_task(partition, options, schema, NOTHING_NARROWED)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_every_message_of_rocketmqs_directory_is_read(tmp_path: Path, stop: str) -> None:
    sent = [*workload.messages(5, 700)]
    with Apache("store", tmp_path) as apache:
        apache_puts(apache, sent)
        theirs = checks.apache_view(apache)
        if stop == "killed":
            apache.kill()
    before = hashes(tmp_path)
    columns = "topic,queueId,queueOffset,keys,tags,properties,flag,physicalOffset,reconsumeTimes,bodyCRC"
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows_of(tmp_path, select=columns[:-8])}
    bodies = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["body"]
        for row in rows_of(tmp_path, onDamage="skip", minPartitions="5")
    }
    expected = 0
    for (topic, queue_id), queue in theirs.items():
        for offset, data in enumerate(queue.records, queue.min_offset):
            record = decode_record(data)
            row = found[topic, queue_id, offset]
            properties = record.property_map()
            assert dict(row["properties"]) == properties
            assert (row["tags"], row["keys"]) == (properties.get("TAGS"), properties.get("KEYS"))
            assert (row["flag"], row["physicalOffset"], row["reconsumeTimes"]) == (
                record.flag,
                record.physical_offset,
                record.reconsume_times,
            )
            if record.sys_flag & 1:  # marked as compressed, which random bytes are not
                assert (topic, queue_id, offset) not in bodies
            else:
                assert bodies[topic, queue_id, offset] == record.body
            expected += 1
    assert len(found) == expected
    assert hashes(tmp_path) == before
    COUNTS["messages equal in the Spark source"] += expected
