"""What the store says of its files, as checks of the broker's health: which directory fails, what is lacking.

Only a lost directory makes the broker unready, until it is restarted: with the others pulls go on, and the store tries
again by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput_broker.observe.health import BrokerState, Health

NEWS = frozenset({"recovering", "index_complete"})
"""Events of the store that are no cause for concern; the others are logged as warnings, or as errors."""
FAILURES = frozenset({"store_directory_lost"})
"""Events that need an operator at once."""


class StoreHealth:
    """Keeps the checks `directories`, `commit_log_dirs`, `log_files`, `index` and `tables`.

    One owner: the event loop.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._failing: dict[str, str] = {}
        self._unsaved: dict[str, str] = {}

    def turn_read_only(self, reason: str) -> None:
        """Show that nothing can be stored any more."""
        self._health.state = BrokerState.READONLY
        self._health.set("writable", False, reason)

    def note_disk(self, refusal: str | None) -> None:
        """Show why puts are refused because of the disk's use; None while they are not."""
        self._health.set("disk_space", refusal is None, refusal or "")

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """Change the check that an event of the store is about, if it is about one."""
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
        """Change the check `tables` after a table was saved, or could not be."""
        if error is None and table not in self._unsaved:
            return
        if error is None:
            del self._unsaved[table]
        else:
            self._unsaved[table] = f"{table} could not be saved: {error}"
        self._health.set("tables", not self._unsaved, "; ".join(self._unsaved.values()))
