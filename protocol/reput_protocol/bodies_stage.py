"""Body of COMMIT_STAGED: the stagings that make up the batch, in the order in which they are published."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import field

from reput_protocol.body import I64, Body


class StagedPart(NamedTuple):
    """One staging as its sender knows it."""

    staging_id: str
    messages: I64
    checksum: I64


class CommitStagedBody(Body):
    """The stagings of one batch."""

    parts: list[StagedPart] = field(name="staged")
