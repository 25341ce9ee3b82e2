"""RocketMQ's part of a cluster, in one process: name server, brokers, clients, tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from conformance import apache
from support.broker_process import free_port


class JavaCluster:
    """What RocketMQ has of the cluster, in one process; see apache/src/main/java/reput/conformance/Cluster.java.

    Args:
        rocketmq_home: where the tools look for `conf/tools.yml`.
    """

    def __init__(self, home: Path, rocketmq_home: Path | None = None) -> None:
        home.mkdir()
        self._home = home
        self._errors = (home / "stderr").open("wb")
        self._process = subprocess.Popen(
            [
                "java",
                *apache.JVM_OPTIONS,
                f"-Duser.home={home}",
                f"-Djava.io.tmpdir={home}",
                *([] if rocketmq_home is None else [f"-Drocketmq.home.dir={rocketmq_home}"]),
                *("-cp", apache.classpath(), "reput.conformance.Cluster"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            cwd=home,
        )

    def ask(self, verb: str, **fields: object) -> dict[str, Any]:
        """Have one request carried out; return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": verb, **fields}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def start_broker(self, name: str, names: str, port: int, *, compressed: bool = False) -> None:
        """Start a broker that registers with a name server."""
        geometry = apache.SMALL
        self.ask(
            "broker",
            name=name,
            names=names,
            port=port,
            compressed=compressed,
            dir=str(self._home / "store"),
            commitLogFileSize=geometry.commit_log_file_size,
            consumeQueueEntries=geometry.consume_queue_entries,
            indexSlots=geometry.index_slots,
            indexEntries=geometry.index_entries,
            haPort=free_port(),
            timerWheel=True,  # without it RocketMQ fails when it deletes a topic
        )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
