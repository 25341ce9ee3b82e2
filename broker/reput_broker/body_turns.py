"""Writing a body that may be large, in turns with other clients."""

from __future__ import annotations

import trio

from reput_protocol.commands.body import LargeBody


async def write_in_turns(body: LargeBody) -> bytes:
    """Return a body's JSON; after each part others have their turn. What is in the body must not change meanwhile."""
    parts: list[bytes] = []
    for part in body.json_parts():
        parts.append(part)
        await trio.lowlevel.checkpoint()
    return b"".join(parts)
