"""A master of an elected group that is killed in the middle of a commit: the next one has the batch once and whole."""

from __future__ import annotations

import sys
import threading
import uuid
from pathlib import Path

import pytest

from reput_client.blocking.bulk import StagingProducer
from reput_client.produce.staging_producer import StagingScope
from reput_protocol.commands.stage import StagedPart
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.cluster_of_three import ClusterOfThree
from support.etcd_process import MISSING
from support.sink_client import published

pytestmark = [pytest.mark.process, pytest.mark.fault, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

TOPIC = "orders"
BLOCKS, BLOCK = 6, 50
PATIENCE_S = 60.0
STAND_IN = Path(__file__).resolve().parents[1] / "support" / "sink_broker.py"


def bodies(batch_id: int) -> list[bytes]:
    return [b"%d/%04d" % (batch_id, number) + b"." * 300 for number in range(BLOCKS * BLOCK)]


def stage(writer: StagingProducer, batch_id: int) -> StagedPart:
    scope = StagingScope("q", batch_id, 0, uuid.uuid4().hex)
    writer.begin(scope)
    every = bodies(batch_id)
    for first in range(0, len(every), BLOCK):
        some = every[first : first + BLOCK]
        ids = [f"{scope.staging_id}-{first + number}" for number in range(len(some))]
        writer.stage(TOPIC, 0, len(some), encode_put_block([Message(TOPIC, body) for body in some], TOPIC, 0, 1, ids))
    return writer.end()


def test_a_master_that_is_killed_while_it_publishes_is_followed_by_one_that_completes_the_batch(tmp_path: Path) -> None:
    step = tmp_path / "step"
    step.write_text("")
    command = [sys.executable, str(STAND_IN), f"@{step}"]
    options = {"REPUT_TOPICS__DEFAULT_QUEUES": "1"}
    with ClusterOfThree(tmp_path, environment=options, command=command) as cluster:
        with StagingProducer(cluster.addresses, timeout_s=PATIENCE_S) as writer:
            assert not writer.commit("q", 0, [stage(writer, 0)]).repeated
            part, old = stage(writer, 1), cluster.wait_in_sync(0, 1, 2)
            step.write_text("piece:3")

            def let_the_next_one_live() -> None:
                cluster.brokers[old].wait(PATIENCE_S)
                step.write_text("")

            waiting = threading.Thread(target=let_the_next_one_live)
            waiting.start()
            result = writer.commit("q", 1, [part], PATIENCE_S)
            waiting.join()
            assert result.repeated, "the next master has published the rest before it took the commit"
            new = cluster.wait_master()
            assert new != old
            assert writer.query_staged("q").last_batch_id == 1
            assert not writer.commit("q", 2, [stage(writer, 2)]).repeated
        expected = [body for batch_id in range(3) for body in bodies(batch_id)]
        assert published(cluster.brokers[new].address, TOPIC) == {0: expected}
