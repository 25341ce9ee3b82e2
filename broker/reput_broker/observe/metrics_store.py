"""What the metrics page asks of the store."""

from __future__ import annotations

from typing import Protocol


class StoreFigures(Protocol):
    """What the page shows of the store; `MessageStore` has it all, without touching a file."""

    @property
    def flush_behind_bytes(self) -> int: ...  # noqa: D102
    @property
    def commit_behind_bytes(self) -> int: ...  # noqa: D102
    @property
    def file_waits(self) -> int: ...  # noqa: D102
    @property
    def dispatch_behind_bytes(self) -> int: ...  # noqa: D102
    @property
    def min_physical_offset(self) -> int: ...  # noqa: D102
    @property
    def max_physical_offset(self) -> int: ...  # noqa: D102
    def queues(self) -> list[tuple[str, int]]: ...  # noqa: D102
    def min_offset_in_queue(self, topic: str, queue_id: int, /) -> int: ...  # noqa: D102
    def max_offset_in_queue(self, topic: str, queue_id: int, /) -> int: ...  # noqa: D102
