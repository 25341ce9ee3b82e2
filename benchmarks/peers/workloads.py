"""The workloads, which are the same for every system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Durability = Literal["page_cache", "flushed", "replicated"]
"""What an acknowledgement promises; `replicated`: on the disks of a master and one slave."""
Kind = Literal["batched", "singles", "windowed", "paced"]
"""How messages are sent: in the client's fastest way; by single sends that the client may batch; awaited, with a number
in flight; or at fixed times."""

KIB = 1024


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the table."""

    name: str
    title: str
    kind: Kind
    size: int
    durability: Durability = "page_cache"
    in_flight: int = 1
    producers: int = 1
    rate: int = 0
    """Messages per second of a paced workload; a consumer waits at the end of the log."""
    consume: bool = False
    """Whether reading the messages back is a row too, and not only a check."""


WORKLOADS = (
    Workload("batched-100", "batched, 100 B", "batched", 100),
    Workload("batched-1k", "batched, 1 KiB", "batched", KIB, consume=True),
    Workload("batched-10k", "batched, 10 KiB", "batched", 10 * KIB),
    Workload("singles-1k", "one send at a time, 1 KiB", "singles", KIB),
    Workload("producers-8", "batched, 1 KiB, 8 producers", "batched", KIB, producers=8),
    Workload("one-in-flight", "one in flight, 1 KiB", "windowed", KIB),
    Workload("window-64", "64 in flight, 1 KiB", "windowed", KIB, in_flight=64),
    Workload("end-to-end", "end to end at 10,000 a second, 1 KiB", "paced", KIB, rate=10_000),
    Workload("flushed-1", "flushed, one in flight, 1 KiB", "windowed", KIB, "flushed"),
    Workload("flushed-64", "flushed, 64 in flight, 1 KiB", "windowed", KIB, "flushed", in_flight=64),
)


def chosen(names: str) -> list[Workload]:
    """Return the workloads named in a comma-separated list; all of them for an empty one.

    Raises:
        SystemExit: a name is unknown; the text lists the known ones.
    """
    if not names:
        return list(WORKLOADS)
    known = {workload.name: workload for workload in WORKLOADS}
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"error: no workload is called {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in wanted]
