"""Whether a send that failed is tried again: only what was asked for by `retries=`, and what it was in the end."""

from __future__ import annotations

from typing import Final

from reput_client.errors import AckNotReached, ConnectionLost, SendOutcomeUnknown
from reput_protocol.errors import BrokerError, ReputError

RETRY_PAUSE_S: Final = 0.05
"""What the first repetition waits; each one waits as much longer."""


def after(
    error: ReputError, unknown: SendOutcomeUnknown | None, *, is_last: bool
) -> SendOutcomeUnknown | None:
    """Return what is known of a send that failed with `error` and is to be repeated: whether it may be stored.

    Raises:
        SendOutcomeUnknown: it is not to be repeated, and an attempt may have been stored, this one or one before.
        ReputError: `error`, which is not to be repeated, and nothing before it can have been stored.
    """
    if isinstance(error, SendOutcomeUnknown):
        unknown = error
    repeatable = isinstance(error, (SendOutcomeUnknown, ConnectionLost)) or (
        isinstance(error, BrokerError) and error.retryable
    )
    if repeatable and not is_last:
        return unknown
    if unknown is None or unknown is error or isinstance(error, AckNotReached):
        raise error
    raise unknown from error
