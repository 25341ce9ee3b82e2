"""`reput store` next to a real broker: refused while it runs, clean after it stopped, repaired so that it starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.broker_process import SMALL_INDEX, BrokerProcess
from support.command import reput
from support.store_samples import hashes, records_of
from support.stores import BORN_HOST, T0, dispatch_all, flip_bit, opened

pytestmark = pytest.mark.process

SMALL = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64KiB", "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "100"}


def test_from_a_running_broker_to_a_repaired_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with BrokerProcess(root, environment=SMALL) as broker:
        lines = "\n".join(f"line {number:05d} " + "x" * 100 for number in range(1000))
        sent = reput("produce", "t", "-t", "tag", "-k", "key", "--server", broker.address, text=lines)
        assert sent.returncode == 0, sent.stderr
        read = reput("consume", "t", "-g", "readers", "-n", 500, "--server", broker.address)
        assert read.returncode == 0, read.stderr
        refused = reput("store", "verify", root)
        assert refused.returncode == 1
        assert f"in use by process {broker.pid}" in refused.stderr
        assert broker.terminate() == 0

    before = hashes(root)
    clean = reput("store", "verify", root)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert "clean; 1000 records" in clean.stdout
    assert hashes(root) == before

    places = records_of(root)
    in_last_file = [place for place in places if place.path == places[-1].path]
    place = in_last_file[len(in_last_file) // 2]
    kept = places.index(place)
    flip_bit(place.path, place.body)
    damaged = reput("store", "verify", root, "-O", "json")
    assert damaged.returncode == 7
    faults = json.loads(damaged.stdout)["faults"]
    assert (faults[0]["file"], faults[0]["position"]) == (str(place.path), place.position)
    with pytest.raises(AssertionError, match="reput store repair"), BrokerProcess(root, environment=SMALL):
        pass

    assert reput("store", "repair", root).returncode == 7
    done = reput("store", "repair", root, "--yes")
    assert done.returncode == 0, done.stderr
    assert (root / "repair-1" / "repair.json").exists()
    with BrokerProcess(root, environment=SMALL) as broker:
        read = reput("consume", "t", "-e", "--server", broker.address)
        assert len(read.stdout.splitlines()) == kept
        assert reput("produce", "t", "afterwards", "--server", broker.address).returncode == 0
        assert broker.terminate() == 0
    assert reput("store", "verify", root).returncode == 0


def fill_large(root: Path, messages: int) -> None:
    """Make a store that takes some tenths of a second to rebuild, of the sizes that `BrokerProcess` runs with."""
    store = opened(
        StoreOptions(
            root,
            commit_log_file_size=64 << 10,
            consume_queue_entries=100,
            index_slots=int(SMALL_INDEX["REPUT_STORE__INDEX_SLOTS"]),
            index_entries=int(SMALL_INDEX["REPUT_STORE__INDEX_ENTRIES"]),
        )
    )
    for first in range(0, messages, 100):
        batch = [Message("t", b"%06d" % n, keys=[f"k{n}"], unique_id=f"U{n:06d}") for n in range(first, first + 100)]
        block = bytearray(encode_put_block(batch, "t", first // 100 % 4, T0))
        store.put_one(Block(block, "t", first // 100 % 4, 100, BORN_HOST))
        while store.reput_step():
            pass
    dispatch_all(store)
    assert store.close()


def test_a_rebuild_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill_large(root, 20_000)
    index = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    with subprocess.Popen(
        [sys.executable, "-m", "reput_cli", "store", "rebuild", str(root)], stderr=subprocess.PIPE
    ) as process:
        while process.poll() is None and not (root / "rebuild-1.tmp").exists():
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert (root / "rebuild-1.tmp").is_dir(), "it was in the middle of its work"

    def check() -> None:
        with BrokerProcess(root, environment=SMALL) as broker:
            read = reput("consume", "t", "-e", "-f", "%v\\n", "--server", broker.address)
            assert sorted(read.stdout.split()) == [f"{number:06d}" for number in range(20_000)]
            for key in ("k0", "k9999", "U019999"):
                found = reput("message", "find", "-t", "t", "-k", key, "--server", broker.address)
                assert json.loads(found.stdout)["body"] == f"{int(key[1:]):06d}"
            assert broker.terminate() == 0
            assert "index_behind" not in broker.log_tail()

    check()
    done = reput("store", "rebuild", root)
    assert done.returncode == 0, done.stderr
    assert "queues: 20000 units in 4 queues" in done.stderr
    assert "index: 40000 keys in 3 files" in done.stderr
    assert not list(root.glob("*.tmp"))
    assert [path.read_bytes() for path in sorted((root / "index").iterdir())] == index
    assert reput("store", "verify", root).returncode == 0
    check()
