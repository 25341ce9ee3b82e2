"""A standalone cluster of Spark on loopback: a master and two workers, as processes of the installed pyspark.

The scripts that start one are not in the pip package, so the classes are started through `spark-class`, with the Java
that the jobs would take. The workers have two addresses of loopback: Spark starts no speculative attempt on a host
where the first one runs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from reput_pipeline.spark.session import prepare_environment
from support.broker_process import free_port

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
WORKER_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_READY: Final = "Successfully registered with master"
_DEADLINE_S: Final = 300.0
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster:
    """A context manager: master and workers are up in the body, and gone after it with all that they started.

    Args:
        directory: of their logs and work.
        memory: what a worker has to give.
    """

    def __init__(self, directory: Path, *, memory: str = "1g") -> None:
        self._directory = directory
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    @property
    def master(self) -> str:
        """The URL for `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> SparkCluster:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master", _MASTER, "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
            self._wait("master", lambda: _listens(self._port))
            for number, host in enumerate(WORKER_HOSTS):
                work = self._directory / f"work-{number}"
                arguments = ["--host", host, "--webui-port", "0", "-c", "1", "-m", self._memory, "-d", str(work)]
                self._start(f"worker-{number}", _WORKER, *arguments, self.master)
            for number in range(len(WORKER_HOSTS)):
                name = f"worker-{number}"
                self._wait(name, lambda name=name: _READY in self._log(name))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            # The executors are children of their worker, and of its group.
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    process.wait(10.0)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue
        self._processes = []

    def _start(self, name: str, *command: str) -> None:
        import pyspark

        prepare_environment()
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            spark_class = str(home / "bin" / "spark-class")
            self._processes.append(
                subprocess.Popen(
                    [spark_class, *command], stdout=log, stderr=log, env=environment, start_new_session=True
                )
            )

    def _wait(self, name: str, is_up: object) -> None:
        assert callable(is_up)
        give_up_at = time.monotonic() + _DEADLINE_S
        while not is_up():
            if self._processes[-1].poll() is not None or time.monotonic() > give_up_at:
                raise AssertionError(f"{name} did not come up:\n{self._log(name)[-3000:]}")
            time.sleep(0.05)

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
