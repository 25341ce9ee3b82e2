"""Jobs of client processes and their results; both pass through pipes as lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a client."""

    role: str
    """`create`, `drop`, `produce`, `consume` or `tail`."""
    server: str
    topic: str
    kind: str = ""
    size: int = 0
    seconds: float = 0.0
    """Seconds that a producer sends."""
    in_flight: int = 1
    rate: int = 0
    first: int = 0
    """The number of a producer's first message."""
    messages: int = 0
    """The number of messages that a consumer waits for."""
    durability: str = "page_cache"
    columns: bool = False
    """Whether to consume columns instead of message objects, if the client has them."""


@dataclass(slots=True)
class Result:
    """The result of a job."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies_us: list[int] = field(default_factory=list)
    fault: str = ""
    """Why the run does not count: messages lost, repeated or changed, or an error. Empty if it counts."""

    def as_line(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Result:
        """Return the result of a line."""
        return cls(**json.loads(line))


def job_of_line(line: str) -> Job:
    """Return the job of a line."""
    fields: dict[str, Any] = json.loads(line)
    return Job(**fields)
