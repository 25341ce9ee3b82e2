"""Body of COMMIT_STAGED: the stagings that make up the batch, in the order in which they are published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.loose_json import read_json, write_json


class StagedPart(NamedTuple):
    """One staging as its sender knows it."""

    staging_id: str
    messages: int
    checksum: int


@dataclass(slots=True)
class CommitStagedBody:
    """The stagings of one batch."""

    parts: list[StagedPart]

    def to_json(self) -> bytes:
        """Return the body; each staging is an array of its id, its number of messages and its checksum."""
        return write_json({"staged": self.parts})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        staged = members.get("staged")
        if type(staged) is not list:
            raise BodyMalformed("'staged' is no array of stagings")
        parts: list[StagedPart] = []
        for item in staged:
            if type(item) is not list or [type(part) for part in item] != [str, int, int]:
                raise BodyMalformed("an item of 'staged' is not an array of an id and two integers")
            parts.append(StagedPart(*item))
        return cls(parts)
