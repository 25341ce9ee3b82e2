"""The version that RocketMQ puts on every table it keeps in a file (RocketMQ: DataVersion)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """How often a table changed, and when it last did. Ordered by state version, counter, timestamp."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int, state_version: int = 0) -> DataVersion:
        """Return the version of the table after one more change at `now_ms`."""
        return DataVersion(state_version, self.counter + 1, now_ms)

    def to_json(self) -> dict[str, int]:
        """Return the members as RocketMQ writes them, in its (alphabetical) order."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    @classmethod
    def from_json(cls, members: object) -> Self:
        """Read the members; what is missing (older files) or no number counts as 0."""
        if not isinstance(members, Mapping):
            return cls()
        return cls(*(_whole(members.get(name)) for name in ("stateVersion", "counter", "timestamp")))


def _whole(value: Any) -> int:
    if isinstance(value, dict):  # 4.x wraps the counter: {"value": 3}
        value = value.get("value")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
