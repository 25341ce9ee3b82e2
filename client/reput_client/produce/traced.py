"""Spans around the methods of producers, if `reput_client.otel.instrument` was called; otherwise the methods alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from reput_client.transport.client import Client
from reput_protocol.codes import TransactionState
from reput_protocol.record.message import Message

if TYPE_CHECKING:
    from reput_client.otel.tracing import Sending, Tracing

M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])
Begin: TypeAlias = "Callable[[Tracing, dict[str, Any]], Sending]"
"""Begins the span of a call and puts its context into the call's arguments, which it changes."""


def traced(begin: Begin) -> Callable[[M], M]:
    """Return a decorator for methods of producers that send."""

    def decorate(method: M) -> M:
        parameters = signature(method)

        @wraps(method)
        def call(self: Client, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
            if self._tracing is None:
                return method(self, *args, **options)
            return send(self._tracing, self, *args, **options)

        async def send(tracing: Tracing, /, *args: Any, **options: Any) -> Any:
            given = parameters.bind(*args, **options)
            with begin(tracing, given.arguments) as sending:
                result = await method(*given.args, **given.kwargs)
                sending.end(result)
                return result

        return cast("M", call)

    return decorate


def of_message(tracing: Tracing, given: dict[str, Any]) -> Sending:
    """Begin the span of one `message`."""
    given["message"] = given["self"]._serialized(given["message"])  # noqa: SLF001  # the span has its size
    sending = tracing.sending(given["message"])
    given["message"] = sending.injected(given["message"])
    return sending


def of_messages(tracing: Tracing, given: dict[str, Any]) -> Sending:
    """Begin the span of several `messages`, which all get its context."""
    sending = tracing.sending_many()
    given["messages"] = list(sending.each_injected(given["messages"]))
    return sending


def of_bodies(tracing: Tracing, given: dict[str, Any]) -> Sending:
    """Begin the span of messages of one `topic` that share `properties`."""
    sending = tracing.sending_many(given["topic"])
    given["properties"] = sending.added_to(given.get("properties"))
    return sending


def of_copy(tracing: Tracing, given: dict[str, Any]) -> Sending:
    """Begin the span of one message that is made from another one and from `properties`."""
    sending = tracing.sending_copy(given.get("topic"))
    given["properties"] = sending.added_to(given.get("properties"))
    return sending


def of_transaction(tracing: Tracing, given: dict[str, Any]) -> Sending:
    """Begin the span of a `message` in a transaction; it is the current one in `local_transaction`."""
    given["message"] = given["self"]._serialized(given["message"])  # noqa: SLF001
    sending = tracing.sending(given["message"], "transaction")
    given["message"] = sending.injected(given["message"])
    local_transaction = given["local_transaction"]

    async def within(message: Message) -> TransactionState:
        with sending.current():
            state: TransactionState = await local_transaction(message)
            return state

    given["local_transaction"] = within
    return sending
