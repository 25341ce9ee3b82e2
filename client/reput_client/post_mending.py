"""What an interrupt has torn apart is put together again: every posted block is somewhere, or done.

In the blocking face a signal handler may raise between any two instructions; Ctrl-C does. A block may then have left
one place and not reached the next, or be in both. What certainly has not left goes on. What may have left, though
nothing is waited for, ends as unknown, since sending it again might store it twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from reput_client.errors import ConnectionLost
from reput_client.post_block import Block
from reput_client.post_link import Link
from reput_client.puts import outcome_unknown

_INTERRUPTED = "the program was interrupted as it was sent"


def mend_link(link: Link) -> set[Block]:
    """Have every block of a link in one place, and its call end; return those that it has."""
    for block in list(link.flying):
        if block in link.waiting:
            link.flying.remove(block)  # nothing of it was queued
        elif block.call is None:
            link.flying.remove(block)
            block.finish(None, outcome_unknown(block.queue, block.unique_ids, _INTERRUPTED))
        else:
            _end_call(block)
    return {*link.flying, *link.waiting}


def put_back(link: Link, block: Block) -> None:
    """Have a link look once more at a sealed block that is in no place."""
    if block.call is not None:
        _end_call(block)
        link.flying.append(block)
        return
    waiting = link.waiting
    behind = (
        place
        for place, other in enumerate(waiting)
        if other.queue == block.queue and other.serial > block.serial
    )
    waiting.insert(next(behind, len(waiting)), block)


def lost_of(blocks: Iterable[Block], links: Iterable[Link], open_blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks that are not done and in no place, in their order."""
    placed = set(open_blocks)
    for link in links:
        placed |= mend_link(link)
    return [block for block in blocks if not block.done and block not in placed]


def _end_call(block: Block) -> None:
    """A call that was taken from a connection as that ended, or as its answer was read, would never be done."""
    call, connection = block.call, block.connection
    if call is not None and not call.done and connection is not None and not connection.is_open:
        call.fail(ConnectionLost(str(block.address), "the program was interrupted"))
