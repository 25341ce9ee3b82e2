"""Under which group a replay keeps how far it has come: one for each choice of messages and where they go.

So an interrupted replay goes on when the same command is given again, and one with another filter begins at the
beginning.
"""

from __future__ import annotations

import hashlib

from reput_protocol.names import REPLAY_GROUP


def replayed_until(expression: str | None, target: str | None) -> str:
    """Return the name of the group for a filter and a target topic; both None is a replay of everything."""
    if expression is None and target is None:
        return REPLAY_GROUP
    digest = hashlib.sha256(f"{expression or ''}\n{target or ''}".encode()).hexdigest()
    return f"{REPLAY_GROUP}_{digest[:12]}"
