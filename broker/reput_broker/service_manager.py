"""Reports to the service manager that started the process (systemd: sd_notify, `Type=notify-reload`).

Each report is a datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names. Without that variable nothing
is sent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import structlog
import trio

from reput_broker.observe.health import BrokerState, Health

log = structlog.get_logger(__name__)

_TICK_S = 10.0
_EXTENSION_US = 30_000_000
"""How much longer the start may take from each report on; three ticks."""


class ServiceManager:
    """The socket of the service manager; a context manager. One owner: the event loop.

    Args:
        environment: has `NOTIFY_SOCKET`, and `WATCHDOG_USEC` if reports are expected at that interval.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._watchdog_s = _watchdog_s(environment)
        self._socket: socket.socket | None = None
        self._phase = "starting"
        if name.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        elif name:
            log.warning("service_manager_ignored", address=name, hint="NOTIFY_SOCKET needs a path, or @name")

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def ready(self, status: str) -> None:
        """Report that the server has started; `status` is for the operator."""
        self._phase = "serving"
        self._report(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being read; `reloaded` follows. Neither counts before or after serving."""
        if self._phase == "serving":
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._report(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def reloaded(self, status: str) -> None:
        """Report that this is done, successfully or not."""
        if self._phase == "serving":
            self.ready(status)

    def stopping(self) -> None:
        """Report that the server stops."""
        self._phase = "stopping"
        self._report("STOPPING=1\nSTATUS=stopping")

    async def run(self, health: Health) -> None:
        """Extend the time for a long start, and feed the watchdog while the event loop runs and the log can be written.

        A store that a failed sync has made read-only can be written again only after a restart, so the watchdog is not
        fed any more, and the service manager restarts the broker. It is fed if a directory or file of the store is not
        at its path any more: the open files may be the only copy of the messages, and an operator copies them first.
        """
        if self._socket is None:
            return
        is_fed = True
        while True:
            if self._phase == "starting":
                self._report(f"EXTEND_TIMEOUT_USEC={_EXTENSION_US}\nSTATUS=recovering the store")
            if self._watchdog_s:
                directories = health.checks.get("directories")
                is_lost = directories is not None and not directories.ok
                works = health.state is not BrokerState.READONLY or is_lost
                if works:
                    self._report("WATCHDOG=1")
                elif is_fed:
                    log.error("watchdog_not_fed", hint="the service manager restarts the broker")
                is_fed = works
            await trio.sleep(min(_TICK_S, self._watchdog_s / 2 or _TICK_S))

    def _report(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            log.warning("service_manager_not_reached", report=text.partition("\n")[0], detail=str(error))


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the interval at which the watchdog expects a report, in seconds; 0 if it expects none of this process."""
    interval = environment.get("WATCHDOG_USEC", "")
    is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(interval) / 1e6 if interval.isdecimal() and is_ours else 0.0
