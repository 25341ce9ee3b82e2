"""Positions in a queue on the command line: a word, an offset, a count from the end, or a time; START:END of these."""

from __future__ import annotations

import re

import click

from reput_client.positions import Position


class TimeType(click.ParamType[int]):
    """A time in RFC 3339, or an age such as `-15m`, both with or without `@`; the value is in ms since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time; other text is refused with the valid forms."""
        if isinstance(value, int):
            return value
        time_ms = Position.parse_time(str(value))
        if time_ms is None:
            raise click.BadParameter(
                f"{str(value)!r} is not a time: write 2026-01-02T03:04:05Z, or -15m for 15 minutes ago", ctx, param
            )
        return time_ms


TIME = TimeType()


class PositionType(click.ParamType[Position]):
    """A position in a queue, written as for `reput consume -o`."""

    name = "position"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        """Return the position; other text is refused with the valid forms."""
        if isinstance(value, Position):
            return value
        position = Position.parse(str(value))
        if position is None:
            raise click.BadParameter(
                f"{str(value)!r} is not a position: write earliest, latest, an offset, -N for the last N of each "
                "queue, @2026-01-02T03:04:05Z or @-15m",
                ctx,
                param,
            )
        return position


class RangeType(click.ParamType["tuple[Position, Position | None]"]):
    """`START` or `START:END`; the value is a pair of positions, the second None without an end."""

    name = "start"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Position, Position | None]:
        """Return the positions; other text is refused with the valid forms."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        whole = Position.parse(text)
        if whole is not None:
            return whole, None
        for cut in (match.start() for match in re.finditer(":", text)):
            start = Position.parse(text[:cut] or "earliest")
            end = Position.parse(text[cut + 1 :] or "latest")
            if start is not None and end is not None:
                return start, end
        raise click.BadParameter(
            f"{text!r} is not a position: write earliest, latest, an offset, -N for the last N of each queue, "
            "@2026-01-02T03:04:05Z, @-15m, or START:END of these",
            ctx,
            param,
        )
