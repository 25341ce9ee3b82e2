"""The checksum over the whole record (`enabledAppendPropCRC`, `forceVerifyPropCRC`): each verifies the other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import checks, workload
from conformance.apache import Apache
from conformance.counts import COUNTS
from conformance.reput_side import open_store, put_lists, view
from conformance.test_store_handover import apache_puts
from support.stores import killed

pytestmark = pytest.mark.process


def test_each_verifies_the_records_of_the_other(tmp_path: Path) -> None:
    """RocketMQ takes no record without the checksum here; recovery after a kill makes both look at every one."""
    sent = [*workload.messages(31, 150)]
    store = open_store(tmp_path / "store", record_crc=True)
    put_lists(store, sent, blocks=False)  # a block's records have the checksum only if its sender left room for it
    data_dir = killed(store, tmp_path / "killed").data_dir
    assert store.close()

    with Apache("store", data_dir, record_crc=True) as apache:
        theirs = checks.apache_view(apache)
        records = sum(len(queue.records) for queue in theirs.values())
        assert records == sum(map(len, workload.queued(sent).values()))
        assert all(b"__CRC32#" in record for queue in theirs.values() for record in queue.records)
        more = [*workload.messages(32, 150)]
        apache_puts(apache, more)
        theirs = checks.apache_view(apache)
        apache.kill()

    store = open_store(data_dir, record_crc=True)
    ours = view(store)
    checks.same(ours, theirs)
    assert all(b"__CRC32#" in record for queue in ours.values() for record in queue.records)
    for (topic, queue_id), queue in ours.items():
        for offset in range(queue.min_offset, queue.max_offset):
            (result,) = store.get_message(topic, queue_id, offset, 1, 1 << 20).extents
            assert store.message_at(result.physical_offset) is not None
            COUNTS["records with a valid checksum of the whole"] += 1
    assert store.close()
