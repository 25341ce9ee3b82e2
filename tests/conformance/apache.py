"""Apache RocketMQ in its own process, driven line by line; see apache/src/main/java/reput/conformance/Main.java.

The Java program is built with Maven on first use, into build/conformance/, and again when its sources change. Maven
fetches RocketMQ and what it needs from Maven Central, some 90 MB, once.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from conformance.workload import Sent
from support.broker_process import free_port
from support.maven import built_classpath

SOURCES = Path(__file__).parent / "apache"
BUILD = Path(__file__).parents[2] / "build" / "conformance"

# Small and quick to start; the exports are what RocketMQ's own start scripts give it on a current Java.
JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dcom.rocketmq.sendMessageWithVIPChannel=false",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)

Line = dict[str, Any]


class ApacheError(Exception):
    """RocketMQ refused a request or ended; the text says how."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of files, the same for both brokers. Small, so that a few hundred messages fill several of each kind."""

    commit_log_file_size: int = 64 * 1024
    consume_queue_entries: int = 50
    index_slots: int = 100
    index_entries: int = 200


SMALL = Geometry()
TIMER_LOG_BYTES = 52 * 40 + 16 + 2052
"""Of one file of the timer log; few messages fill it."""


@functools.cache
def classpath() -> str:
    """What `java -cp` needs, built if need be; see `built_classpath` for its errors."""
    return built_classpath(SOURCES, BUILD, "conformance.build")


def free_broker_port() -> int:
    """A loopback port for a RocketMQ broker, which takes the one two below as well."""
    while True:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port - 2))
            return port


class Apache:
    """RocketMQ on one directory, from when it is open until it is stopped or killed.

    Args:
        face: `store` for the store library alone, `broker` for a whole broker with the official client.
        data_dir: the store directory.
        port: where the broker listens; the store library only writes it into records.
        geometry: sizes of its files.
        flush_sync: SYNC_FLUSH instead of ASYNC_FLUSH.
        record_crc: end every record with a checksum of the whole, and take none without (store library only).
        store_ip: what the store library writes into records as its address.
        group: the consumer group of the broker's client.
        log_dirs: where the log is, if not in one directory below `data_dir`.
        read_only_log_dirs: where no new file of it is made.
        timer_wheel: whether there is a timer.
        role: of a broker: `ASYNC_MASTER`, `SYNC_MASTER` or `SLAVE`.
        ha_port: where a master serves its log.
        ha_master: the address of the log that a slave copies.
        master: the broker whose tables a slave takes over, at its start.
        in_sync_replicas: copies that a `SYNC_MASTER` waits for.
    """

    def __init__(
        self,
        face: Literal["store", "broker"],
        data_dir: Path,
        *,
        port: int = 10911,
        geometry: Geometry = SMALL,
        flush_sync: bool = False,
        record_crc: bool = False,
        store_ip: str = "127.0.0.1",
        group: str = "conformance",
        log_dirs: Sequence[Path] = (),
        read_only_log_dirs: Sequence[Path] = (),
        timer_wheel: bool = False,
        role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER",
        ha_port: int = 0,
        ha_master: str = "",
        master: str = "",
        in_sync_replicas: int = 1,
    ) -> None:
        settings = {
            "dir": str(data_dir),
            "commitLogFileSize": geometry.commit_log_file_size,
            "consumeQueueEntries": geometry.consume_queue_entries,
            "indexSlots": geometry.index_slots,
            "indexEntries": geometry.index_entries,
            "port": port,
            "flushSync": flush_sync,
            "recordCrc": record_crc,
            "storeIp": store_ip,
            "group": group,
            "commitLogDirs": ",".join(map(str, log_dirs)),
            "readOnlyCommitLogDirs": ",".join(map(str, read_only_log_dirs)),
            "timerWheel": timer_wheel,
            "timerLogFileSize": TIMER_LOG_BYTES,
            "role": role,
            "brokerId": int(role == "SLAVE"),
            "haPort": ha_port,
            "haMaster": ha_master,
            "master": master,
            "inSyncReplicas": in_sync_replicas,
        }
        home = data_dir.parent / f"{data_dir.name}.apache"  # RocketMQ writes its logs below its user's home
        home.mkdir(exist_ok=True)
        self._errors = home / "stderr"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    "java",
                    *JVM_OPTIONS,
                    f"-Duser.home={home}",
                    f"-Djava.io.tmpdir={home}",
                    *("-cp", classpath(), "reput.conformance.Main", face, json.dumps(settings)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        try:
            self._answer()
        except BaseException:
            self.kill()
            raise

    def ask(self, verb: str, **fields: object) -> list[Line]:
        """Have one request carried out; return its lines.

        Raises:
            ApacheError: with RocketMQ's text.
        """
        self.send(verb, **fields)
        return self._answer()

    def send(self, verb: str, **fields: object) -> None:
        """Give a request without waiting for its answer; `lines` reads that."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb, **fields}) + "\n")
        self._process.stdin.flush()

    def lines(self) -> Iterator[Line]:
        """The lines of an answer as they come."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "error" in line:
                raise ApacheError(f"{line['error']}\n{self._log_tail()}")
            if "end" in line:
                return
            yield line
        raise ApacheError(f"RocketMQ ended with {self._process.wait()}\n{self._log_tail()}")

    def _answer(self) -> list[Line]:
        return list(self.lines())

    def put(self, messages: Iterable[Sent], *, batch: bool = False) -> list[Line]:
        """Store messages, one by one or as one batch; return RocketMQ's result of each put."""
        return self.ask("put", messages=[as_request(sent) for sent in messages], batch=batch)

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Lowest and next offset of every queue that ever held a message."""
        return {
            (line["topic"], line["queueId"]): (line["min"], line["max"])
            for line in self.ask("queues")
            if line["max"] > 0
        }

    def records(self, verb: str, **fields: object) -> list[bytes]:
        """The records that a request to the store library yields."""
        lines = self.ask(verb, **fields)
        odd = [line for line in lines if "record" not in line]
        assert not odd, f"RocketMQ does not find {odd[:3]}"
        return [base64.b64decode(line["record"]) for line in lines]

    def by_time(self, topic: str, queue_id: int, times: Sequence[int], boundary: str = "lower") -> list[int]:
        """The queue offset that each of the times leads to."""
        lines = self.ask("by_time", topic=topic, queueId=queue_id, times=list(times), boundary=boundary)
        return [line["offset"] for line in lines]

    def stop(self) -> None:
        """Stop in order, which RocketMQ takes its time for."""
        self.ask("stop")
        assert self._process.wait(60) == 0
        self._close_pipes()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _log_tail(self) -> str:
        lines = self._errors.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if " |-INFO in " not in line][-30:])

    def __enter__(self) -> Apache:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._process.poll() is None:
            self.kill()


def as_request(sent: Sent) -> Mapping[str, object]:
    """A message as the Java program takes it."""
    return {
        "topic": sent.topic,
        "queueId": sent.queue_id,
        "body": base64.b64encode(sent.body).decode(),
        "properties": sent.properties,
        "flag": sent.flag,
        "sysFlag": sent.sys_flag,
        "bornHost": sent.born_ip,
        "reconsumeTimes": sent.reconsume_times,
    }
