"""The options of message filters."""

from __future__ import annotations

from reput_broker.config.section import Section, option


class FiltersConfig(Section):
    """Which messages a consumer asks for."""

    sql: bool = option(
        True, "serve SQL92 expressions over the properties of messages, not only tags", live=True
    )
    sql_characters_max: int = option(
        4 << 20,
        "characters of all different SQL92 expressions in use at once; some 15 bytes of memory for each",
        live=True,
        ge=8192,
        le=1 << 30,
    )
