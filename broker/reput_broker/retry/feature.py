"""Retries and dead letters of a master: what consumers send back, and what is stored elsewhere than it was sent."""

from __future__ import annotations

from reput_broker.core import Core
from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.request import Handler
from reput_broker.retry.claimed_origins import ClaimedOrigins
from reput_broker.retry.replay import ReplayProcessor
from reput_broker.retry.send_back import SendBackProcessor
from reput_broker.retry.send_back_deduplication import PutBackOnce, SendBackDeduplication
from reput_broker.send.put_once import PutOnce
from reput_broker.send.send_redirects import SendRedirects
from reput_broker.transactions.transaction_table import TransactionTable


class RetryFeature:
    """Retries and dead letters, and what stores a repeated message once.

    Attributes:
        once: stores messages that producers may send again, once each.
        redirects: decides which messages are not stored as they are sent.
        back_once: stores messages that consumers send back, once each.
        claims: checks what they say about messages that they send to a retry topic themselves.
    """

    def __init__(self, core: Core, transactions: TransactionTable, delay_redirects: DelayRedirects) -> None:
        self.once = PutOnce(core)
        self.redirects = SendRedirects(core, transactions, delay_redirects)
        sent_back = SendBackDeduplication(
            core.store, dispatch=core.puts.reput.catch_up, clock_ms=core.clock_ms
        )
        self.back_once = PutBackOnce(sent_back, core.puts.appender)
        self.claims = ClaimedOrigins(core.store, sent_back.complete_index)
        self._send_back = SendBackProcessor(core, delay_redirects, self.back_once)
        self._replay = ReplayProcessor(core)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {**self._send_back.handlers(), **self._replay.handlers()}
