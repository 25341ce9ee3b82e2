"""The broker as an operator sees it: starting, stopping, being killed, and obstacles."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_client import Ack
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ReputError
from support.broker_process import SMALL_INDEX, BrokerProcess, free_port
from support.raw_client import RawClient
from support.stored_messages import bodies_of
from support.waiting import wait_until

pytestmark = pytest.mark.process


def put(address: str, topic: str, *bodies: bytes, ack: Ack = "flushed") -> None:
    with Producer(address, group="ops") as producer:
        for body in bodies:
            producer.send(Message(topic, body), ack=ack, queue_id=0)


def serve(
    tmp_path: Path, *arguments: str, timeout: float = 20.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `reput serve` where it is expected to end by itself."""
    command = [sys.executable, "-m", "reput_cli", "serve", "--port", "0", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=tmp_path,
        env={**os.environ, **SMALL_INDEX, **environment},
    )


def test_killed_and_started_again_it_has_everything(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "store")
    process.start()
    process.wait_ready()
    put(process.address, "t", b"flushed")
    put(process.address, "t", *(b"cached %d" % n for n in range(100)), ack="page_cache")
    process.kill()
    process.start()
    process.wait_ready()
    assert bodies_of(process.address, "t") == [b"flushed", *(b"cached %d" % n for n in range(100))]
    assert process.terminate() == 0


def test_sigterm_leaves_a_clean_directory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as process:
        put(process.address, "t", b"1", b"2", ack="page_cache")
        assert (tmp_path / "store" / "abort").exists()
        assert process.terminate() == 0
        assert not (tmp_path / "store" / "abort").exists()
    with BrokerProcess(tmp_path / "store") as process:
        assert bodies_of(process.address, "t") == [b"1", b"2"]


def test_a_second_broker_on_the_directory_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as process:
        other = serve(tmp_path, "--data-dir", str(tmp_path / "store"), "--http-port", "0")
        assert other.returncode == 1
        assert str(process.pid) in other.stderr
        assert str(tmp_path / "store") in other.stderr
        put(process.address, "t", b"undisturbed")
        assert bodies_of(process.address, "t") == [b"undisturbed"]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as process:
        other = serve(tmp_path, "--data-dir", str(tmp_path / "other"), "--port", str(process.port), "--http-port", "0")
        assert other.returncode == 1
        assert str(process.port) in other.stderr
        assert "Traceback" not in other.stderr


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [("notes.txt", 10, "notes.txt"), ("00000000000000000000", 1000, "1000"), ("00000000000000000001", 1 << 30, "1")],
)
def test_foreign_and_wrong_sized_files_stop_the_start(tmp_path: Path, name: str, size: int, says: str) -> None:
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    with (log / name).open("wb") as file:
        file.truncate(size)
    before = sorted(path.name for path in log.iterdir())
    result = serve(tmp_path, "--data-dir", str(tmp_path / "store"), "--http-port", "0")
    assert result.returncode == 1, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in log.iterdir()) == before
    assert (log / name).stat().st_size == size


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("consumequeue/%LMQ%light/0/00000000000000000000", "enableLmq"),
        ("consumequeue_rocksdb/CURRENT", "RocksDB"),
        ("consumequeue_ext/t/0/00000000000000000000", "store.consume_queue_ext = true"),
    ],
)
def test_queues_of_kinds_that_are_not_kept_stop_the_start(tmp_path: Path, name: str, says: str) -> None:
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"MANIFEST-000001")
    result = serve(tmp_path, "--data-dir", str(tmp_path / "store"), "--http-port", "0")
    assert result.returncode == 1, result.stderr
    assert str(path) in result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == b"MANIFEST-000001"


def test_extended_entries_serve_filters_through_kills(tmp_path: Path) -> None:
    environment = {
        "REPUT_STORE__CONSUME_QUEUE_EXT": "true",
        "REPUT_STORE__CONSUME_QUEUE_EXT_FILE_SIZE": "40000B",
        "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
    }
    process = BrokerProcess(tmp_path / "store", environment=environment)

    def matching(tags: str) -> int:
        count = offset = 0
        with PullConsumer(process.address, group="ops") as consumer:
            while True:
                result = consumer.pull("t", queue_id=0, offset=offset, wait_s=0.0, tags=tags)
                assert all(message.tag == tags for message in result.messages)
                count += len(result.messages)
                offset = result.next_begin_offset
                if offset >= result.max_offset:
                    return count

    for round_number in range(1, 4):
        process.start()
        process.wait_ready()
        with Producer(process.address, group="ops") as producer:
            messages = [Message("t", b"x", tag="red" if n % 3 else "blue") for n in range(3_000)]
            producer.send_batch(messages, queue_id=0)
        assert matching("red") == 2_000 * round_number
        assert matching("blue") == 1_000 * round_number
        process.kill()
    entries = sorted((tmp_path / "store" / "consumequeue_ext" / "t" / "0").iterdir())
    assert [path.name for path in entries] == [f"{start:020d}" for start in range(0, 180_000, 40_000)]
    unit = (tmp_path / "store" / "consumequeue" / "t" / "0" / f"{0:020d}").read_bytes()[12:20]
    assert unit == b"\x80" + bytes(7), "the address of position 0"


def test_damage_in_the_middle_stops_the_start_and_names_the_place(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as process:
        put(process.address, "t", *(b"message %d" % n * 20 for n in range(50)))
        process.kill()
        log = tmp_path / "store" / "commitlog" / "00000000000000000000"
        with log.open("r+b") as file:
            file.seek(3_000)
            file.write(b"\xff" * 8)
        before = log.read_bytes()[:20_000]
    result = serve(tmp_path, "--data-dir", str(tmp_path / "store"), "--http-port", "0")
    assert result.returncode == 7, result.stderr
    assert "00000000000000000000" in result.stderr
    assert "reput store repair" in result.stderr
    assert log.read_bytes()[:20_000] == before


def test_a_configuration_with_three_mistakes_names_all_three(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('prot = 1\n[store]\nflush = "sometimes"\ncommit_log_file_size = 100\n')
    result = serve(tmp_path, "-c", str(config))
    assert result.returncode == 2
    for part in ("broker.toml", "prot", "port", "store.flush", "sometimes", "store.commit_log_file_size"):
        assert part in result.stderr, result.stderr
    checked = serve(tmp_path, "-c", str(config), "--check")
    assert checked.returncode == 2
    config.write_text('[store]\nflush = "async"\n')
    assert serve(tmp_path, "-c", str(config), "--check").returncode == 0
    missing = serve(tmp_path, "-c", str(tmp_path / "nowhere.toml"))
    assert missing.returncode == 2
    assert "nowhere.toml" in missing.stderr
    environment = serve(tmp_path, "--check", REPUT_STORE__FLUSH_INTERVALL="1s")
    assert environment.returncode == 2
    assert "REPUT_STORE__FLUSH_INTERVALL" in environment.stderr


def test_listening_beyond_loopback_needs_to_be_asked_for(tmp_path: Path) -> None:
    result = serve(tmp_path, "--host", "0.0.0.0", "--check")
    assert result.returncode == 2
    assert "allow_insecure" in result.stderr


def test_a_directory_that_cannot_be_written_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    result = serve(tmp_path, "--data-dir", str(tmp_path / "file"), "--http-port", "0")
    assert result.returncode == 1
    assert str(tmp_path / "file") in result.stderr
    assert "Traceback" not in result.stderr


def test_health_pages(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as process:
        base = f"http://127.0.0.1:{process.http_port}"

        def get(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(base + path, timeout=5.0) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        assert get("/livez")[0] == 200
        assert get("/readyz")[0] == 200
        checks = json.loads(get("/readyz?verbose")[1])
        assert checks
        status = json.loads(get("/status")[1])
        assert status["state"] == "running"
        assert "reput_messages_in_total" in get("/metrics")[1]
        assert get("/nothing")[0] == 404
        request = urllib.request.Request(base + "/metrics", data=b"x")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5.0)
        assert refused.value.code == 405
        refused.value.close()


def test_sighup_applies_live_options_and_refuses_bad_ones(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[topics]\nauto_create = true\n")
    command = [sys.executable, "-m", "reput_cli", "serve", "-c", str(config)]
    store, port, http_port = tmp_path / "store", free_port(), free_port()
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [*command, "--data-dir", str(store), "--port", str(port), "--http-port", str(http_port)], stderr=log
    )
    try:
        _wait_ready(http_port)
        put(f"127.0.0.1:{port}", "made", b"x")
        config.write_text("[topics]\nauto_create = false\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: _refused(f"127.0.0.1:{port}"))
        config.write_text("[topics]\nauto_create = 7\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reput_config_reload_success 0" in _page(http_port))
        assert _refused(f"127.0.0.1:{port}")
        put(f"127.0.0.1:{port}", "made", b"still there")
    finally:
        process.terminate()
        assert process.wait(30) == 0
        log.close()


_ON_A_TERMINAL = (
    "import fcntl, os, signal, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # the tests may run under nohup
    "os.execv(sys.executable, [sys.executable, '-m', 'reput_cli', 'dev', '--port', '0', '--http-port', '0'])"
)


def test_a_throw_away_broker_ends_with_its_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", _ON_A_TERMINAL]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    broker = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        shown = b""
        while b"reput consume hello" not in shown:
            shown += os.read(master, 65_536)
        os.close(master)
        assert broker.wait(20.0) == 0
    finally:
        broker.kill()
        broker.wait()
    assert not list(tmp_path.iterdir())  # its directory is gone as well


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "store")
    process.start()
    process.wait_ready()
    with PullConsumer(process.address, group="g"):
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10.0) in (0, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a full disk needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_refuses_puts_serves_pulls_and_recovers_by_itself(small_disk: Path) -> None:
    environment = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "4MiB", "REPUT_STORE__MESSAGE_SIZE_MAX": "1MiB"}
    with BrokerProcess(small_disk / "store", environment=environment) as process:
        put(process.address, "t", b"before")
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 6 << 20)
        stored = 1
        with Producer(process.address, group="ops") as producer:
            with pytest.raises(ReputError, match="DISK_FULL"):  # noqa: PT012  (how many fit is not ours to say)
                for n in range(100):
                    producer.send(Message("t", b"%06d" % n + b"." * 500_000), queue_id=0)
                    stored += 1
            with Admin(process.address) as admin:
                assert admin.max_offset("t", 0) == stored
            assert len(bodies_of(process.address, "t")) == stored
            filler.unlink()
            deadline = time.monotonic() + 20
            while True:
                try:
                    producer.send(Message("t", b"after" * 100_000), queue_id=0)
                    break
                except ReputError:
                    assert time.monotonic() < deadline, process.log_tail()
                    time.sleep(0.2)
        assert len(bodies_of(process.address, "t")) == stored + 1


def _page(http_port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=5.0) as answer:
        text: str = answer.read().decode()
        return text


def _wait_ready(http_port: int) -> None:
    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(ready)


def _refused(address: str) -> bool:
    try:
        put(address, f"new-{time.monotonic_ns()}", b"x")
    except ReputError:
        return True
    return False


def test_a_kill_loses_no_topic_of_a_large_table(tmp_path: Path) -> None:
    """Its changes are in a journal, until topics.json is written again."""
    many = [{"topicName": f"topic-{number}"} for number in range(500)]
    config = tmp_path / "store" / "config"
    with BrokerProcess(tmp_path / "store", environment={"REPUT_OFFSETS__FLUSH_INTERVAL": "1h"}) as process:
        client = RawClient(process.address)
        body = json.dumps({"topicConfigList": many}).encode()
        assert client.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)[0].code == 0
        client.close()
        whole = (config / "topics.json").read_bytes()
        with Admin(process.address) as admin:
            for number in range(20):
                admin.create_topic(f"later-{number}")
            admin.delete_topic("topic-7")
        put(process.address, "sent", b"x")  # created by its first message
        process.kill()
        assert (config / "topics.json").read_bytes() == whole
        process.start()
        process.wait_ready()
        with Admin(process.address) as admin:
            names = set(admin.list_topics())
        assert {f"later-{number}" for number in range(20)} | {"sent", "topic-8", "topic-499"} <= names
        assert "topic-7" not in names
        assert bodies_of(process.address, "sent") == [b"x"]
        assert process.terminate() == 0
    assert b"later-19" in (config / "topics.json").read_bytes()
    assert not (config / "topics.journal").exists()
