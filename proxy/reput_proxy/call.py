"""One request of a client: who sends it, and how long it waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from reput_proxy.clients import ClientKey
from reput_proxy.proxy import Proxy
from reput_proxy.rejections import Code, Rejected
from reput_proxy.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Call:
    """A request.

    Attributes:
        proxy: what all requests share.
        upstream: the connections to the brokers of its user.
        user: the user's name; empty without access control.
        client_id: as the client names itself; empty if it does not.
        remaining_s: how long the client waits for the answer.
        trace: the trace context of the call or of its span (W3C: traceparent, tracestate), which its messages get.
    """

    proxy: Proxy
    upstream: Upstream
    user: str
    client_id: str
    remaining_s: float
    trace: Mapping[str, str]

    @property
    def client_key(self) -> ClientKey:
        """What the client's messages and streams are kept under."""
        return self.user, self.client_id

    def check_client_id(self) -> None:
        """Raise `Rejected` if the client does not name itself."""
        if not self.client_id:
            raise Rejected(Code.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing")

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""
        return time.time_ns() // 1_000_000

    @property
    def timeout_s(self) -> float:
        """How long a request to a broker may take, so that its error reaches the client.

        One of 0.5, 1.5, 2.5, ... seconds, since sends with the same timeout share a block: clients wait for whole
        seconds, of which up to 0.4 are over when a busy proxy gets to their calls.
        """
        return max(0.25, min(int(self.remaining_s + 0.4), 30) - 0.5)
