"""The processes of one history: a broker, and its clients; and what is done to the broker."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from histories import terms
from histories.clients import BEGIN_DEADLINE_S, Clients
from reput_client.blocking import Admin
from support.broker_process import BrokerProcess

_ENTRY = Path(__file__).with_name("broker_entry.py")
ENVIRONMENT = {
    "REPUT_GROUPS__HEARTBEAT_TIMEOUT": f"{terms.HEARTBEAT_TIMEOUT_S}s",
    "REPUT_TRANSACTIONS__TIMEOUT": "500ms",
    "REPUT_TRANSACTIONS__CHECK_INTERVAL": "300ms",
    "REPUT_TRANSACTIONS__CHECK_MAX": "10000",
    "REPUT_TRANSACTIONS__OP_INTERVAL": "100ms",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
}


class Scene(Clients):
    """The clients, and a broker that is ended and started again."""

    def __init__(self, directory: Path, *, seed: int, bug: str | None = None, kinds: str | None = None) -> None:
        planted = ["--bug", bug] if bug else []
        history = str(directory / "events" / "broker.jsonl")
        self.broker = BrokerProcess(
            directory / "store",
            environment=ENVIRONMENT,
            command=[sys.executable, str(_ENTRY), "--history", history, *planted],
        )
        super().__init__(
            directory,
            self.broker.address,
            seed=seed,
            producer_options=["--kinds", kinds] if kinds else [],
            member_options=planted,
        )

    def __enter__(self) -> Self:
        try:
            self.start_broker()
            with Admin(self.broker.address, timeout_s=30.0) as admin:
                for topic, queues in terms.TOPICS.items():
                    admin.create_topic(topic, queues=queues)
        except BaseException:
            self.broker.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.broker.kill()

    def start_broker(self) -> None:
        """Start it and wait until it serves."""
        self.broker.start()
        self.broker.wait_ready(BEGIN_DEADLINE_S)
        self.recorder.note("broker-up")

    def end_broker(self, how: signal.Signals, down_s: float) -> None:
        """End it, with SIGKILL or SIGTERM, and start it again after a while."""
        self.recorder.note("broker-down", how=how.name)
        if how is signal.SIGKILL:
            self.broker.kill()
        elif self.broker.terminate() != 0:
            self.recorder.note("failed", process="broker", log=self.broker.log_tail())
        time.sleep(down_s)
        self.start_broker()
