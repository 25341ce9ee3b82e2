"""Tables that are larger than a frame, in parts.

A slave of Reput asks for a table from a byte on. The table that it has a part of is kept for a short time, so that all
parts are of one version; if it is not kept any more, the slave gets the beginning of the table as it is now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from reput_broker.request import Handler, Request, Response
from reput_protocol.commands.table_sync import SyncTableHeader
from reput_protocol.wire.header import Value

PART_BYTES: Final = 4 << 20
_KEPT_S: Final = 30.0


class _Kept(NamedTuple):
    """A table that slaves are getting in parts."""

    version: str
    ext: dict[str, Value]
    body: bytes
    until_s: float

    def part(self, offset: int) -> Response:
        """Return the part that begins at an offset."""
        return Response(0, {**self.ext, "tableSize": len(self.body)}, self.body[offset : offset + PART_BYTES])


class TableParts:
    """Answers requests for tables in parts, to slaves that can put them together."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._kept: dict[int, _Kept] = {}

    def of(self, handler: Handler) -> Handler:
        """Return a handler that answers as `handler` does, in parts if the table is large and the slave takes those."""

        async def handle(request: Request) -> Response:
            asked, code, now_s = SyncTableHeader.from_ext(request.ext), request.header.code, self._clock()
            self._kept = {key: kept for key, kept in self._kept.items() if kept.until_s > now_s}
            kept = self._kept.get(code)
            if asked.part_of and kept is not None and kept.version == asked.part_of:
                return kept.part(max(0, asked.part_offset or 0))
            answer = handler(request)
            if isinstance(answer, Awaitable):
                answer = await answer
            assert isinstance(answer, Response), "a table"
            version = answer.ext.get("tableVersion")
            if asked.part_offset is None or len(answer.body) <= PART_BYTES or not isinstance(version, str):
                return answer
            kept = self._kept[code] = _Kept(version, answer.ext, answer.body, now_s + _KEPT_S)
            return kept.part(0)

        return handle
