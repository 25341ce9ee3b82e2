"""Common definitions of producers, members and judges: topics, groups, times, and bodies.

A body is `ID KIND`: the kind says what its handlers do with it, the same whichever member gets it, so that it is known
beforehand how often a message is tried and whether it becomes a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ORDERS: Final = "orders"
STEPS: Final = "steps"
LATER: Final = "later"
DEALS: Final = "deals"
TOPICS: Final = {ORDERS: 6, STEPS: 4, LATER: 2, DEALS: 2}
"""Topics, with their numbers of queues."""

SHARED: Final = "shared"
ORDERLY: Final = "orderly"
BYSTANDER: Final = "bystander"
GROUPS: Final = {SHARED: (ORDERS, LATER, DEALS), ORDERLY: (STEPS,), BYSTANDER: tuple(TOPICS)}
"""Groups, with what they consume. The bystander's one member is left alone, and handles everything."""

RETRY_LEVEL: Final = 1
RETRY_S: Final = 1.0
ATTEMPTS_MAX: Final = 2
"""How often a message is redelivered in `shared` before it is a dead letter; how often one fails in `orderly`."""
ORDERLY_AGAIN_S: Final = 0.2
HANDLER_TIMEOUT_S: Final = 2.0
"""When a message that a member of `shared` holds is given back."""
HANG_S: Final = 4.0

HEARTBEAT_S: Final = 0.5
HEARTBEAT_TIMEOUT_S: Final = 3.0
LOCK_TIMEOUT_S: Final = 3.0
LOCK_RENEWED_S: Final = 0.7
LOCK_TRUSTED_S: Final = 1.5
"""The times of members that consume in order, as short as the broker's, in the same proportions as shipped."""

OK: Final = "ok"
FAILS_ONCE: Final = "fails1"
FAILS_TWICE: Final = "fails2"
POISON: Final = "poison"
HANGS: Final = "hangs"
COMMITS: Final = "commits"
ROLLS_BACK: Final = "rolls-back"
CHECKED_COMMITS: Final = "checked-commits"
CHECKED_ROLLS_BACK: Final = "checked-rolls-back"
ROLLED_BACK: Final = (ROLLS_BACK, CHECKED_ROLLS_BACK)


@dataclass(frozen=True, slots=True)
class Body:
    """What a message says."""

    uid: str
    kind: str

    def encode(self) -> bytes:
        """Return the bytes to send."""
        return f"{self.uid} {self.kind}".encode()

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Read a message's bytes."""
        uid, kind = data.decode().split(" ")
        return cls(uid, kind)

    def fails(self, attempt: int) -> bool:
        """Whether a handler raises when the message has been redelivered `attempt` times."""
        return self.kind == POISON or attempt < {FAILS_ONCE: 1, FAILS_TWICE: 2}.get(self.kind, 0)

    def hangs(self, attempt: int) -> bool:
        """Whether its handler hangs."""
        return self.kind == HANGS and not attempt
