"""The options of deduplication."""

from __future__ import annotations

from reput_broker.config.section import Section, option
from reput_broker.config.units import Duration


class DedupConfig(Section):
    """Puts that may come twice, from producers that ask for deduplication."""

    window: Duration = option(
        600.0,
        "how long after a message was stored one with the same unique id is known as the same",
        live=True,
        ge=1.0,
        le=30 * 86400.0,
    )
