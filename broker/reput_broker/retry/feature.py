"""Retries and dead letters of a master: what consumers send back, and replays of dead letters."""

from __future__ import annotations

from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.request import Handler
from reput_broker.retry.claimed_origins import ClaimedOrigins
from reput_broker.retry.replay import ReplayProcessor
from reput_broker.retry.send_back import SendBackProcessor
from reput_broker.retry.send_back_deduplication import DeduplicatedReturns
from reput_broker.tenure.core import Core


class RetryFeature:
    """Retries and dead letters.

    Attributes:
        deduplicated: stores messages that consumers send back, once each.
        claims: checks what they say about messages that they send to a retry topic themselves.
    """

    def __init__(self, core: Core, delay_redirects: DelayRedirects) -> None:
        self.deduplicated = DeduplicatedReturns(core)
        self.claims = ClaimedOrigins(core)
        self._send_back = SendBackProcessor(core, delay_redirects, self.deduplicated)
        self._replay = ReplayProcessor(core)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {**self._send_back.handlers(), **self._replay.handlers()}
