"""Directories that may not be written, on a real broker: at its start, and while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reput_client.blocking import Message, Producer, PullConsumer
from reput_protocol.errors import ErrorCode, StoreUnavailable
from support.broker_process import BrokerProcess
from support.mounts import NOBODY, closed, mounted
from support.stores import make_sparse

pytestmark = pytest.mark.process

FILE = 256 << 10
SMALL = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB",
    "REPUT_STORE__MESSAGE_SIZE_MAX": "64KiB",
    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "1000",
}
WITHOUT_RIGHTS = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: what lets root write to anybody's files
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "reput_cli", *sys.argv[1:]])
"""


def send(address: str, count: int) -> None:
    with Producer(address, group="g") as producer:
        for start in range(0, count, 20):
            producer.send_batch(
                [Message("t", b"%d" % number + bytes(1000)) for number in range(start, start + 20)], queue_id=0
            )


def count_of(address: str) -> int:
    with PullConsumer(address, group="g") as consumer:
        return consumer.pull("t", queue_id=0, offset=0, max_messages=1, wait_s=0.0).max_offset


def check_of(process: BrokerProcess, name: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{process.http_port}/readyz?verbose"
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        checks: dict[str, Any] = json.load(answer)["checks"]
    found: dict[str, Any] = checks.get(name, {})
    return found


def refused(process: BrokerProcess) -> str:
    """Start it, and return what it says when it ends by itself; the exit code is that of a failure."""
    process.start()
    assert process.wait(30.0) == 1
    said = process.log_tail()
    assert "broker_failed" in said
    assert "StoreNotWritable" in said
    assert "Traceback" not in said
    return said


def test_a_start_on_a_read_only_file_system_is_refused_and_verify_works(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 64 << 20) as disk:
        directory = disk.path / "store"
        process = BrokerProcess(directory, environment=SMALL)
        process.log_path = tmp_path / "log"
        with process:
            send(process.address, 100)
        disk.make_read_only()
        said = refused(process)
        assert f"{directory / 'lock'}: Read-only file system; mount the file system of" in said
        command = [sys.executable, "-m", "reput_cli", "store", "verify", str(directory)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
        disk.make_read_only(False)
        with process:
            assert count_of(process.address) == 100


def test_a_start_without_permission_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    lock = directory / "lock"
    with BrokerProcess(directory, environment=SMALL) as process:
        send(process.address, 20)
    lock.chmod(0o444)
    if os.geteuid() == 0:
        os.chown(lock, NOBODY, NOBODY)
    process = BrokerProcess(directory, environment=SMALL, command=(sys.executable, "-c", WITHOUT_RIGHTS))
    said = refused(process)
    assert f"{lock}: Permission denied; let the user that the broker runs as (uid {os.geteuid()}) write to" in said
    lock.chmod(0o644)
    with BrokerProcess(directory, environment=SMALL) as process:
        assert count_of(process.address) == 20


def test_a_log_directory_in_which_no_file_can_be_created_is_skipped(tmp_path: Path) -> None:
    directories = [tmp_path / "disk-a", tmp_path / "disk-b"]
    environment = {**SMALL, "REPUT_STORE__COMMIT_LOG_DIRS": ",".join(map(str, directories))}

    def held() -> list[int]:
        return [len(list(directory.iterdir())) for directory in directories]

    with BrokerProcess(tmp_path / "store", environment=environment) as process:
        send(process.address, 1000)
        before = held()
        with closed(directories[1]):
            send(process.address, 1000)
            assert held()[0] > before[0] + 2
            assert held()[1] == before[1]
            check = check_of(process, "commit_log_dirs")
            assert not check["ok"]
            assert f"{directories[1]}/0000" in check["detail"]
            assert process.trouble() is None
        send(process.address, 1000)
        assert held()[1] > before[1]
        assert check_of(process, "commit_log_dirs")["ok"]
        assert count_of(process.address) == 3000


def test_without_a_usable_directory_puts_are_refused_and_resume_by_themselves(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", environment=SMALL) as process:
        send(process.address, 100)
        with closed(tmp_path / "store" / "commitlog"):
            with pytest.raises(
                StoreUnavailable, match=r"cannot be created: .*let the user that the broker runs as"
            ) as said:
                send(process.address, 1000)
            assert said.value.error is ErrorCode.READ_ONLY
            assert not check_of(process, "log_files")["ok"]
            stored = count_of(process.address)
            assert stored >= 100, "pulls are served"
            assert process.trouble() is None
        deadline = time.monotonic() + 30
        while not check_of(process, "log_files")["ok"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert check_of(process, "log_files")["ok"], "the file is made though nobody asks for it"
        send(process.address, 100)
        assert count_of(process.address) == stored + 100


def test_a_sparse_last_file_on_a_full_disk_does_not_end_the_process(tmp_path: Path) -> None:
    environment = {**SMALL, "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "8MiB", "REPUT_STORE__DISK_WARNING_RATIO": "0.999"}
    environment["REPUT_STORE__DISK_CLEAN_FORCIBLY_RATIO"] = "0.998"
    with mounted(tmp_path / "disk", 32 << 20) as disk:
        directory, ballast = disk.path / "store", disk.path / "ballast"
        process = BrokerProcess(directory, environment=environment)
        process.log_path = tmp_path / "log"
        with process:
            send(process.address, 100)
        for path in [*(directory / "commitlog").iterdir(), *(directory / "index").iterdir()]:
            make_sparse(path)
        free = os.statvfs(disk.path)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - (512 << 10)))
        with process:
            with pytest.raises(StoreUnavailable, match="no space left") as said:
                send(process.address, 100)
            assert said.value.error is ErrorCode.DISK_FULL
            assert count_of(process.address) == 100, "pulls are served"
            ballast.unlink()
            deadline = time.monotonic() + 30
            while process.trouble() is None and time.monotonic() < deadline:
                with suppress(StoreUnavailable):
                    send(process.address, 20)
                    break
                time.sleep(0.1)
            assert count_of(process.address) == 120
