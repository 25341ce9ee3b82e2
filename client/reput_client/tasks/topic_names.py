"""Names of queues of task frameworks as names of topics."""

from __future__ import annotations

from urllib.parse import quote

from reput_protocol.names import GROUP_LENGTH_MAX


def quoted(name: str) -> str:
    """Return a name with %XX for what names of topics cannot have."""
    # "." and "~" are the two that `quote` keeps and names of topics cannot have.
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def checked(topic: str, what: str) -> str:
    """Return the name of a topic.

    Raises:
        ValueError: it is too long for a group of the same name; the text has `what` and the remedy.
    """
    if len(topic) > GROUP_LENGTH_MAX:
        raise ValueError(
            f"the topic of {what} would have a name of {len(topic)} characters, and {GROUP_LENGTH_MAX} are the most; "
            "give it a shorter name (a character other than letters, digits, - and _ counts as three)"
        )
    return topic
