"""The options of sinks."""

from __future__ import annotations

from reput_broker.config.section import Section, option
from reput_broker.config.units import Duration, Size


class SinkConfig(Section):
    """Sinks that publish whole batches exactly once, such as Spark's: records are staged outside the log first."""

    staging_timeout: Duration = option(
        86_400.0,
        "how long what is staged is kept for a query that does nothing",
        live=True,
        ge=1.0,
        le=365 * 86_400.0,
    )
    staging_size_max: Size = option(
        16 << 30,
        "how many bytes may be staged at a time, of all queries",
        live=True,
        ge=1 << 20,
        le=1 << 50,
    )
    batch_ids_kept: Duration = option(
        90 * 86_400.0,
        "how long the last batch of a query that commits nothing more is remembered",
        live=True,
        ge=3600.0,
        le=3650 * 86_400.0,
    )
