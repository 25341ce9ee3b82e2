"""A core with only the parts that a test needs."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from reput_broker.tenure.core import Core, RoleDuties


def core_of(**parts: Any) -> Core:
    """Return a core with these parts; the use of another raises AttributeError."""
    core = object.__new__(Core)
    for name, part in parts.items():
        setattr(core, name, part)
    return core


class NoDuties(RoleDuties):
    """A role that keeps nothing."""

    is_slave = False

    @override
    async def before_delete(self) -> None:
        pass

    @override
    def needed_from(self) -> int | None:
        return None

    @override
    def waiting_from(self) -> int:
        return 1 << 62

    @override
    def runtime_figures(self) -> dict[str, object]:
        return {}

    @override
    def reaches_master(self) -> bool:
        return False

    @override
    def ids_to_pull_from(self) -> list[int]:
        return []
