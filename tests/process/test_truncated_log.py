"""A file of the log that another program truncates while a broker uses it: the broker ends, and the damage is named."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from reput_client.blocking import Message, Producer, PullConsumer
from reput_protocol.errors import ReputError
from support.broker_process import BrokerProcess

pytestmark = pytest.mark.process

SMALL = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB", "REPUT_STORE__MESSAGE_SIZE_MAX": "64KiB"}


def test_a_log_file_that_is_truncated_in_use_ends_the_broker_and_the_next_start_names_it(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "store", environment=SMALL)
    process.start()
    process.wait_ready()
    with Producer(process.address) as producer:
        for number in range(20):
            producer.send(Message("t", b"%d" % number + bytes(500)), queue_id=0)
        (file,) = (process.data_dir / "commitlog").iterdir()
        whole = file.read_bytes()
        os.truncate(file, 1000)
        with suppress(ReputError):
            producer.send(Message("t", b"never acknowledged"), queue_id=0)
    assert process.wait(30.0) == -signal.SIGBUS
    process.start()
    assert process.wait(30.0) != 0
    assert file.name in process.log_tail()
    assert file.read_bytes() == whole[:1000], "nothing was changed"
    file.write_bytes(whole)
    with process, PullConsumer(process.address, group="g") as consumer:
        found = consumer.pull("t", queue_id=0, offset=0, max_messages=32, wait_s=0.0)
        assert [bytes(message.body) for message in found.messages] == [b"%d" % n + bytes(500) for n in range(20)]
