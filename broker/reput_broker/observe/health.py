"""Whether the broker is ready, and why not: the source of /readyz, `reput_ready` and `reput_state`.

Liveness is different: /livez answers while the event loop runs. A broker that is killed because it is not ready yet
would never finish recovery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog
import trio

log = structlog.get_logger(__name__)


class BrokerState(StrEnum):
    """The state of the broker."""

    RECOVERING = "recovering"
    RUNNING = "running"
    READONLY = "readonly"
    DRAINING = "draining"


@dataclass(slots=True)
class Check:
    """One condition: whether it holds, since when (unix time), and details."""

    ok: bool
    since_s: float
    detail: str
    gates: bool
    """Whether the broker is not ready while this does not hold."""


class Health:
    """The broker's state and its checks. One owner: the event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.started_at_s = clock()
        self.checks: dict[str, Check] = {}
        self._state = BrokerState.RECOVERING
        self._recovered = False
        self._set_state_checks()

    @property
    def state(self) -> BrokerState:
        """The state of the broker."""
        return self._state

    @state.setter
    def state(self, state: BrokerState) -> None:
        self._state = state
        if state is not BrokerState.DRAINING:
            self._recovered = state is not BrokerState.RECOVERING
        self._set_state_checks()

    @property
    def ready(self) -> bool:
        """Whether clients may use the broker: recovered, not draining, and every gating check holds.

        A read-only store still serves pulls, so `readonly` is ready.
        """
        return all(check.ok for check in self.checks.values() if check.gates)

    def set(self, name: str, ok: bool, detail: str = "", *, gates: bool = False) -> None:
        """Set whether the check `name` holds; `since` changes only if that changes."""
        before = self.checks.get(name)
        since = before.since_s if before is not None and before.ok == ok else self._clock()
        self.checks[name] = Check(ok, since, detail, gates)

    def forget(self, names: Iterable[str]) -> None:
        """Remove checks."""
        for name in names:
            self.checks.pop(name, None)

    def failing(self) -> list[str]:
        """Return the names of the checks that keep the broker from being ready."""
        return [name for name, check in self.checks.items() if check.gates and not check.ok]

    def report(self, *, has_details: bool = True) -> dict[str, Any]:
        """Return everything as /readyz?verbose shows it, which has no details with access control."""
        return {
            "ready": self.ready,
            "state": str(self._state),
            "failing": self.failing(),
            "checks": {
                name: {
                    "ok": check.ok,
                    "since": round(check.since_s, 3),
                    **({"detail": check.detail} if has_details else {}),
                    "gates_readiness": check.gates,
                }
                for name, check in self.checks.items()
            },
        }

    def _set_state_checks(self) -> None:
        draining = self._state is BrokerState.DRAINING
        self.set("recovered", self._recovered, "" if self._recovered else "the store is recovering", gates=True)
        self.set("not_draining", not draining, "the broker stops, or changes its role" if draining else "", gates=True)
        writable = self._state is not BrokerState.READONLY
        before = self.checks.get("writable")
        if before is None or before.ok != writable:
            self.set("writable", writable, "" if writable else "the store accepts no more messages")


_NEWS = frozenset({"recovering", "index_complete"})
"""Events of the store that are normal; the others are warnings or errors."""
_FAILURES = frozenset({"store_directory_lost"})
"""Events that need an operator immediately."""


_CHECKS_OF_A_ROLE = (
    "disk_space", "directories", "commit_log_dirs", "log_files", "index", "tables", "replication"
)  # fmt: skip


class StoreHealth:
    """Sets the checks `writable`, `disk_space`, `directories`, `commit_log_dirs`, `log_files`, `index` and `tables`.

    The checks of the role that the broker had before are forgotten. One owner: the event loop; only `report` is called
    from any thread.

    Args:
        is_replica: whether it is a slave's store: once that takes nothing more it only grows old, and is not ready.
    """

    def __init__(self, health: Health, *, is_replica: bool = False) -> None:
        self._health = health
        self._is_replica = is_replica
        health.forget(_CHECKS_OF_A_ROLE)
        self._failing: dict[str, str] = {}
        self._unsaved: dict[str, str] = {}

    def turn_read_only(self, reason: str) -> None:
        """Show that the store accepts no more messages."""
        self._health.state = BrokerState.READONLY
        self._health.set("writable", False, reason, gates=self._is_replica)

    def note_disk(self, refusal: str | None) -> None:
        """Show why puts are refused because of the disk's use; None while they are not."""
        self._health.set("disk_space", refusal is None, refusal or "")

    def report(self, token: trio.lowlevel.TrioToken, event: str, facts: Any) -> None:
        """Log an event of the store, from any thread, and set its check in the event loop of `token`."""
        (log.info if event in _NEWS else log.error if event in _FAILURES else log.warning)(event, **facts)
        with suppress(trio.RunFinishedError):
            if event == "store_read_only":
                token.run_sync_soon(self.turn_read_only, str(facts["reason"]))
            else:
                token.run_sync_soon(self.note, event, facts)

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """Set the check of an event of the store, if it has one."""
        if event in ("log_file_not_made", "log_file_made_again"):
            self._health.set("log_files", event == "log_file_made_again", str(facts.get("reason", "")))
        elif event == "store_directory_lost":
            self._health.set("directories", False, str(facts["reason"]), gates=True)
        elif event in ("index_not_written", "index_incomplete", "index_complete"):
            self._health.set("index", event == "index_complete", str(facts.get("reason", "")))
        elif event == "commit_log_dir_failed":
            self._failing[str(facts["path"])] = str(facts["reason"])
            self._health.set("commit_log_dirs", False, "; ".join(self._failing.values()))
        elif event == "commit_log_dir_works_again":
            self._failing.pop(str(facts["path"]), None)
            self._health.set("commit_log_dirs", not self._failing, "; ".join(self._failing.values()))

    def note_table(self, table: str, error: Exception | None) -> None:
        """Set the check `tables` after a table was saved or could not be."""
        if error is None and table not in self._unsaved:
            return
        if error is None:
            del self._unsaved[table]
        else:
            self._unsaved[table] = f"{table} could not be saved: {error}"
        self._health.set("tables", not self._unsaved, "; ".join(self._unsaved.values()))
