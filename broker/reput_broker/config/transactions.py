"""The options of transactions."""

from __future__ import annotations

from reput_broker.config.section import Section, option
from reput_broker.config.units import Duration, Size


class TransactionsConfig(Section):
    """Half messages: how long their producers have, and how often the broker asks."""

    reject: bool = option(False, "refuse half messages; those that are stored are still decided", live=True)
    timeout: Duration = option(
        6.0,
        "age from which on a half message that is not decided is asked about, unless it names another one",
        live=True,
        ge=0.001,
        le=86400.0,
    )
    check_interval: Duration = option(
        30.0, "time between two rounds of asking", live=True, ge=0.01, le=86400.0
    )
    check_max: int = option(
        15, "how often one half message is asked about before it is put aside", live=True, ge=1, le=1_000_000
    )
    op_interval: Duration = option(
        3.0,
        "longest time that a decision waits to be written down with others",
        live=True,
        ge=0.001,
        le=600.0,
    )
    op_message_size: Size = option(
        4096, "bytes of decisions that are written down at once", live=True, ge=16, le=1 << 20
    )
