"""`reput store` beside a real broker: refused while it runs, clean after it stopped, repaired so that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from store_samples import hashes, records_of
from stores import flip_bit

pytestmark = pytest.mark.process

SMALL = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64KiB", "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "100"}


def reput(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reput_cli", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )


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
