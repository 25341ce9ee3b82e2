"""A broker in a thread of its own, for programs and tests that do not run trio."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.tenure.core import Surroundings

_STARTS_WITHIN_S = 60.0


class BackgroundBroker:
    """The real broker in this process; a context manager.

    It can be stopped and started again, with the same port and directory. Only the thread that created it may use it.

    Args:
        config: see `Broker`; `port` 0 picks a free one, and `http_port` None opens none.
        surroundings: the clocks and disks of the broker, for tests of what takes hours.
    """

    def __init__(self, config: BrokerConfig, surroundings: Surroundings | None = None) -> None:
        self.config = config
        self._surroundings = surroundings
        self._thread: threading.Thread | None = None
        self._broker: Broker | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._address: str | None = None
        self._http_address: str | None = None

    @property
    def address(self) -> str:
        """The address for clients: `ip:port`. It stays the same when the broker is started again.

        Raises:
            RuntimeError: it has never been started.
        """
        if self._address is None:
            raise RuntimeError("the broker has not been started: call start(), or use it in a with statement")
        return self._address

    @property
    def http_address(self) -> str | None:
        """The address of metrics and health, `ip:port`; None if there is no HTTP listener."""
        return self._http_address

    @property
    def data_dir(self) -> Path:
        """The store directory. It stays when the broker stops."""
        return Path(self.config.data_dir)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has neither stopped nor failed."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the broker and wait until it is ready.

        Raises:
            RuntimeError: it is already running, or not ready within a minute.
            ReputError, OSError: it cannot start; it may be started again.
        """
        if self.is_running:
            raise RuntimeError("the broker runs already; stop it first")
        self._ready.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="reput-broker", daemon=True)
        self._thread.start()
        self._ready.wait(_STARTS_WITHIN_S)
        if self._error is not None:
            self._thread.join()
            self._thread = None
            raise self._error
        if self._token is None:
            raise RuntimeError(f"the broker was not ready within {_STARTS_WITHIN_S:g} s; see its log")

    def stop(self) -> None:
        """Stop the broker and wait for it. Everything stored is then on disk. Idempotent.

        Raises:
            Exception: the error that ended the broker before.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        token, broker = self._token, self._broker
        if token is not None and broker is not None and thread.is_alive():
            with suppress(trio.RunFinishedError):  # it may end at this moment
                token.run_sync_soon(broker.stop)
        thread.join()
        self._token = self._broker = None
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self._error = _alone(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with Broker(self.config, surroundings=self._surroundings) as broker:
            self._address, self._http_address = broker.address, broker.http_address
            port = int(broker.address.rpartition(":")[2])
            self.config = self.config.model_copy(update={"port": port}, deep=True)
            self._broker, self._token = broker, trio.lowlevel.current_trio_token()
            self._ready.set()
            await broker.stopped()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _alone(error: BaseException) -> BaseException:
    """Return the only error in nested groups, or the group if there are several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
