"""Celery and Kombu on Reput: the transport and the result backend `reput://` (docs/celery.md).

Importing this makes the URL's scheme known:

    import reput_client.tasks.celery

    app = Celery("shop", broker="reput://127.0.0.1:10911//", backend="reput://127.0.0.1:10911//")

The transport needs Kombu, and the result backend Celery.

`transport` has the connection and its channels, which declare, send and settle, and `clients` what they share. The way
of a message: a thread of `receiving` pops it and calls `Consumer.received` of `transport`, which keeps the `Delivery`
by a tag in `Held` and puts a call into the inbox. The connection's thread makes that call, which calls the program. The
acknowledgement goes from `Channel.basic_ack` through `Held.ack`, `Delivery.done` and `SharedQueue.done` to
`BlockingRun.handled`; a daemon thread of the POP consumer sends it to the broker a moment later, and extends the
message's invisible time until then.
"""

from __future__ import annotations

from contextlib import suppress

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["reput"] = "reput_client.tasks.celery.transport:Transport"
with suppress(ModuleNotFoundError):
    from celery.app.backends import BACKEND_ALIASES

    BACKEND_ALIASES["reput"] = "reput_client.tasks.celery.results:Backend"
