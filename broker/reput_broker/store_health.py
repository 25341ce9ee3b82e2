"""What the store says of its files, as checks of the broker's health: which directory fails, whether a file is lacking.

Neither makes the broker unready: pulls go on, and the store tries again by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput_broker.health import Health


class StoreHealth:
    """Keeps the checks `commit_log_dirs` and `log_files`. One owner: the event loop."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._failing: dict[str, str] = {}

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """Change the check that an event of the store is about, if it is about one."""
        if event in ("log_file_not_made", "log_file_made_again"):
            self._health.set("log_files", event == "log_file_made_again", str(facts.get("reason", "")))
        elif event == "commit_log_dir_failed":
            self._failing[str(facts["path"])] = str(facts["reason"])
            self._health.set("commit_log_dirs", False, "; ".join(self._failing.values()))
        elif event == "commit_log_dir_works_again":
            self._failing.pop(str(facts["path"]), None)
            self._health.set("commit_log_dirs", not self._failing, "; ".join(self._failing.values()))
