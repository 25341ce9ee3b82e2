"""`reput store ...` as a person types it: output, exit codes, the lock."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from golden.test_mini_store import CONSUME_QUEUES, digests, mini_store
from reput_cli.failures import CommandFailed
from reput_cli.store import command
from reput_client.arrow import read_arrow
from reput_protocol.exit_codes import ExitCode
from reput_protocol.record.record import Record
from support.store_samples import fill, hashes, records_of
from support.stores import FakeClock, bodies, dispatch_all, flip_bit, opened, put, small_options


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def reput_store(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)


def test_verify_of_a_good_directory(store: Path) -> None:
    before = hashes(store)
    found = reput_store("verify", store)
    assert found.return_value == ExitCode.DONE
    assert "clean; 60 records" in found.stdout
    as_json = json.loads(reput_store("verify", store, "-O", "json").stdout)
    assert as_json["clean"] is True
    assert as_json["figures"]["units"] == 60
    assert hashes(store) == before


def test_verify_of_a_damaged_directory_names_file_and_byte(store: Path) -> None:
    place = records_of(store)[7]
    flip_bit(place.path, place.body)
    found = reput_store("verify", store)
    assert found.return_value == ExitCode.DAMAGE
    assert f"record: {place.path} at byte {place.position}: BODYCRC" in found.stdout
    assert ": 1 fault;" in found.stdout
    as_json = json.loads(reput_store("verify", store, "-O", "json").stdout)
    assert as_json["faults"][0]["position"] == place.position


def test_many_faults_are_counted_beyond_the_limit(store: Path) -> None:
    for place in records_of(store)[:10]:
        flip_bit(place.path, place.body)
    found = reput_store("verify", store, "--limit", 3)
    assert found.stdout.count("record: ") == 3
    assert "... and 7 more" in found.stdout


def test_a_directory_that_a_broker_has_is_refused(tmp_path: Path) -> None:
    running = opened(small_options(tmp_path))
    put(running, b"x")
    for name in ("verify", "dump", "repair", "rebuild"):
        failed = reput_store(name, tmp_path).exception
        assert isinstance(failed, CommandFailed), name
        assert f"in use by process {os.getpid()}" in failed.what
    assert running.close()
    assert reput_store("verify", tmp_path).return_value == ExitCode.DONE


def test_looking_keeps_a_broker_out_and_lookers_in(store: Path) -> None:
    from reput_broker.store.base.errors import StoreLocked
    from reput_broker.store.opening.lock import AbortMarker, DirectoryLock

    looker, other, owner = (DirectoryLock(store / "lock", AbortMarker(store / "abort")) for _ in range(3))
    assert looker.acquire_shared()
    assert other.acquire_shared()
    with pytest.raises(StoreLocked):
        owner.acquire()
    looker.release()
    other.release()
    owner.acquire()
    with pytest.raises(StoreLocked):
        looker.acquire_shared()
    owner.release()
    (store / "lock").unlink()
    assert not looker.acquire_shared()


def test_a_directory_that_is_not_a_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        failed = reput_store("verify", path).exception
        assert isinstance(failed, CommandFailed)
        assert failed.code == ExitCode.NOT_FOUND


def test_a_genuine_rocketmq_directory(tmp_path: Path) -> None:
    mini_store(tmp_path)
    assert reput_store("verify", tmp_path).return_value == ExitCode.DONE
    lines = [json.loads(line) for line in reput_store("dump", tmp_path, "-O", "json").stdout.splitlines()]
    assert [line["kind"] for line in lines].count("record") == 7
    assert reput_store("rebuild", tmp_path, "--queues", "--consume-queue-entries", 3).return_value == ExitCode.DONE
    exported = reput_store("export", tmp_path, "--topic", "T").stdout.splitlines()
    assert [json.loads(line)["body"] for line in exported] == ["m0", "m1", "m5", "m6"]


def test_dump_as_text(store: Path) -> None:
    found = reput_store("dump", store, "--queue", "T/1", "--from", 3, "--count", 1).stdout
    assert found.startswith("kind=unit  queue_offset=3  physical_offset=")
    assert "flushed_offset" in reput_store("dump", store, "--checkpoint").stdout
    assert "group=billing" in reput_store("dump", store, "--offsets").stdout
    assert "kind=topic  topic=T" in reput_store("dump", store, "--topics").stdout
    failed = reput_store("dump", store, "--queue", "T/9").exception
    assert isinstance(failed, CommandFailed)
    assert failed.code == ExitCode.NOT_FOUND


def test_export_to_a_file(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    done = reput_store("export", store, "--topic", "T", "--from", 29, "-o", target)
    assert done.return_value == ExitCode.DONE
    assert [json.loads(line)["body"] for line in target.read_text().splitlines()] == ["body-0058", "body-0059"]
    place = records_of(store)[0]
    flip_bit(place.path, place.body)
    damaged = reput_store("export", store, "--topic", "T", "-o", target)
    assert damaged.return_value == ExitCode.DAMAGE
    assert len(target.read_text().splitlines()) == 59
    assert "message 0 of T/0" in damaged.stderr


def test_export_to_parquet_has_the_columns_of_spark(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    done = reput_store("export", store, "--topic", "T", "-f", "parquet", "-o", target)
    assert done.return_value == ExitCode.DONE
    everything = read_arrow(store, "T").read_all().sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    assert pq.read_table(target).equals(everything)
    place = records_of(store)[0]
    flip_bit(place.path, place.body)
    damaged = reput_store("export", store, "--topic", "T", "-f", "parquet", "-o", target)
    assert damaged.return_value == ExitCode.DAMAGE
    assert "message 0 of T/0" in damaged.stderr
    assert pq.read_table(target).equals(everything.slice(1))
    assert [path.name for path in tmp_path.glob("out*")] == ["out.parquet"]


def test_a_body_that_cannot_be_decompressed_is_not_in_parquet(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "s"))
    for body, flag in ((b"plain", 0), (zlib.compress(b"x" * 99), 1), (b"no zlib", 1)):
        store.put_record(Record("T", body, sys_flag=flag))
    dispatch_all(store)
    store.close()
    target = tmp_path / "out.parquet"
    done = reput_store("export", tmp_path / "s", "--topic", "T", "-f", "parquet", "-o", target)
    assert done.return_value == ExitCode.DAMAGE
    assert "damaged: message 2 of T/0: " in done.stderr
    assert "1 damaged message was left out" in done.stderr
    assert pq.read_table(target)["body"].to_pylist() == [b"plain", b"x" * 99]


def test_repair_shows_and_does(store: Path) -> None:
    place = records_of(store)[-2]
    flip_bit(place.path, place.body)
    before = hashes(store)
    shown = reput_store("repair", store)
    assert shown.return_value == ExitCode.DAMAGE
    assert f"at byte {place.position}" in shown.stdout
    assert "lost: 1 message of topic T" in shown.stdout
    assert hashes(store) == before
    done = reput_store("repair", store, "--yes")
    assert done.return_value == ExitCode.DONE
    assert "repair-1" in done.stdout
    again = opened(small_options(store), FakeClock())
    assert bodies(again, "T", 1)[-1] == b"body-0057"
    assert again.close()
    assert reput_store("repair", store).return_value == ExitCode.DONE
    assert reput_store("verify", store).return_value == ExitCode.DONE


def test_rebuild_of_everything_and_of_one_thing(store: Path) -> None:
    done = reput_store("rebuild", store)
    assert done.return_value == ExitCode.DONE
    assert "queues: 60 units in 2 queues" in done.stderr
    assert "index: 120 keys in 4 files" in done.stderr
    done = reput_store("rebuild", store, "--index")
    assert "queues" not in done.stderr
    assert reput_store("verify", store).return_value == ExitCode.DONE


def test_rebuild_of_an_index_whose_sizes_nothing_tells(store: Path) -> None:
    shutil.rmtree(store / "index")
    done = reput_store("rebuild", store)
    assert done.return_value == ExitCode.PARTIAL
    assert "index: not rebuilt; no file has its numbers of slots and entries" in done.stderr
    assert not (store / "index").exists()
    failed = reput_store("rebuild", store, "--index").exception
    assert isinstance(failed, CommandFailed)
    assert failed.code == ExitCode.USAGE
    assert "--index-entries" in str(failed.remedy)
    done = reput_store("rebuild", store, "--index", "--index-slots", 16, "--index-entries", 40)
    assert "index: 120 keys in 4 files" in done.stderr


@pytest.mark.parametrize("option", ["--queues", "--index"])
def test_rebuild_refuses_a_log_with_holes_and_names_the_place(store: Path, option: str) -> None:
    place = records_of(store)[7]
    flip_bit(place.path, place.position + 5)
    before = hashes(store)
    failed = reput_store("rebuild", store, option).exception
    assert isinstance(failed, CommandFailed)
    assert failed.code == ExitCode.DAMAGE
    assert failed.what == f"the log is damaged: {place.path} at byte {place.position}"
    assert failed.remedy == f"reput store repair {store}"
    assert hashes(store) == before


def test_rebuild_refuses_a_log_whose_end_is_gone(store: Path) -> None:
    last = records_of(store)[-1]
    last.path.write_bytes(last.path.read_bytes()[: last.position].ljust(4096, b"\0"))
    failed = reput_store("rebuild", store).exception
    assert isinstance(failed, CommandFailed)
    assert failed.what == f"the log is damaged: {last.path} at byte {last.position}"


def test_delay_levels_of_the_broker_are_named(tmp_path: Path) -> None:
    mini_store(tmp_path)
    sizes = ("--consume-queue-entries", 3)
    own = ("--delay-levels", "1s 5s 20s 30s")
    assert reput_store("rebuild", tmp_path, "--queues", *sizes, *own).return_value == ExitCode.DONE
    assert reput_store("verify", tmp_path, *own).return_value == ExitCode.DONE
    found = reput_store("verify", tmp_path)
    assert found.return_value == ExitCode.DAMAGE
    assert "--delay-levels" in found.stderr
    before = hashes(tmp_path)
    for name in ("rebuild", "repair"):
        failed = reput_store(name, tmp_path).exception
        assert isinstance(failed, CommandFailed)
        assert "SCHEDULE_TOPIC_XXXX/2" in str(failed.reason)
        assert "--delay-levels" in str(failed.reason)
    assert hashes(tmp_path) == before
    refused = reput_store("verify", tmp_path, "--delay-levels", "1s 5 10s").exception
    assert "'5' is not a delay" in str(refused)
    levels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert reput_store("repair", tmp_path, "--yes", "--delay-levels", levels).return_value == ExitCode.DONE
    assert reput_store("verify", tmp_path).return_value == ExitCode.DONE
    assert digests(tmp_path, CONSUME_QUEUES) == CONSUME_QUEUES


def test_tools_that_refuse_or_have_nothing_to_do_leave_no_lock_file(store: Path) -> None:
    (store / "lock").unlink()
    before = hashes(store)
    assert reput_store("repair", store, "--yes").return_value == ExitCode.DONE
    assert hashes(store) == before
    place = records_of(store)[7]
    flip_bit(place.path, place.position + 5)
    before = hashes(store)
    assert isinstance(reput_store("rebuild", store).exception, CommandFailed)
    assert hashes(store) == before


def test_a_log_that_another_store_has_is_not_touched(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = opened(small_options(tmp_path / "other", commit_log_dirs=(log,)))
    put(running, b"x")
    (tmp_path / "store" / "config").mkdir(parents=True)
    before = hashes(tmp_path)
    for name in (["repair", "--yes"], ["rebuild"]):
        failed = reput_store(*name, tmp_path / "store", "--commit-log-dir", log).exception
        assert isinstance(failed, CommandFailed)
        assert failed.what == f"the log directory {log} is in use by another store"
    assert hashes(tmp_path) == before
    assert running.close()


def test_rebuild_of_what_a_killed_rebuild_renamed(store: Path) -> None:
    for name in ("consumequeue", "index"):
        (store / name).rename(store / f"{name}.replaced")
    done = reput_store("rebuild", store)
    assert done.return_value == ExitCode.DONE, done.stderr
    assert "index: 120 keys in 4 files" in done.stderr
    assert not list(store.glob("*.replaced"))
    assert reput_store("verify", store).return_value == ExitCode.DONE
