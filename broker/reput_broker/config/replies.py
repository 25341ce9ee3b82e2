"""The options of request and reply."""

from __future__ import annotations

from reput_broker.config.section import Section, option


class RepliesConfig(Section):
    """Replies, which the broker hands to whoever sent the request."""

    store: bool = option(True, "keep a copy of every reply in the cluster's reply topic", live=True)
