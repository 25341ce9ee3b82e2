"""The broker at an address, as it identifies itself."""

from __future__ import annotations

from typing import NamedTuple


class BrokerIdentity(NamedTuple):
    """The broker at an address; `start_id`, if known, changes with every start."""

    name: str
    start_id: str | None

    def difference_from(self, expected: BrokerIdentity) -> str | None:
        """Return how it differs from `expected`, or None."""
        if self.name != expected.name:
            return f"broker {self.name!r} answers there, not {expected.name!r}"
        if expected.start_id is not None and self.start_id not in (None, expected.start_id):
            return (
                f"another broker of the name {self.name!r} answers there "
                f"(its start id is {self.start_id}, not {expected.start_id})"
            )
        return None
