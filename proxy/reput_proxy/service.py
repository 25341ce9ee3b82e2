"""The methods of the service, as gRPC calls them: who asks, errors as statuses, counters."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from reput_proxy import messaging_pb2 as pb
from reput_proxy import pulling, receiving, routes, sending, settling, telemetry
from reput_proxy.call import Call
from reput_proxy.proxy import Proxy
from reput_proxy.rejections import Code, Rejected, Undecodable, decoded, ok, status_of

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
METHODS: Final = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE_MAX: Final = 512
_WAIT_S: Final = 30.0
"""How long a request without a deadline may take."""


async def _end_transaction(call: Call, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
    await call.upstream.transactions.end(request, call.timeout_s)
    return pb.EndTransactionResponse(status=ok())


_UNARY: Final[dict[str, Callable[[Call, Any], Awaitable[Any]]]] = {
    "QueryRoute": routes.query_route,
    "QueryAssignment": routes.query_assignment,
    "Heartbeat": telemetry.heartbeat,
    "NotifyClientTermination": telemetry.terminated,
    "SendMessage": sending.send,
    "RecallMessage": sending.recall,
    "EndTransaction": _end_transaction,
    "AckMessage": settling.ack,
    "ChangeInvisibleDuration": settling.change_invisible_duration,
    "ForwardMessageToDeadLetterQueue": settling.forward_to_dead_letters,
    "UpdateOffset": pulling.update_offset,
    "GetOffset": pulling.get_offset,
    "QueryOffset": pulling.query_offset,
}
_STREAMED: Final[dict[str, Callable[[Call, Any], AsyncIterator[Any]]]] = {
    "ReceiveMessage": receiving.receive,
    "PullMessage": pulling.pull,
}


class Service:
    """Answers the calls of a gRPC server."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def handlers(self) -> Any:
        """Return what a gRPC server is given."""
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name, handler), *_codecs(name))
            for name, handler in _UNARY.items()
        }
        for name, stream in _STREAMED.items():
            methods[name] = grpc.unary_stream_rpc_method_handler(self._streamed(name, stream), *_codecs(name))
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(self._telemetry, *_codecs("Telemetry"))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _call(self, context: Any) -> Call:
        """Return who asks.

        Raises:
            Rejected: the request is not signed as it must be.
        """
        metadata = {
            name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        user, secret = "", None
        if self._proxy.users is not None:
            user, secret = self._proxy.users.check(
                metadata.get("authorization"), metadata.get("x-mq-date-time")
            )
        remaining_s = context.time_remaining()
        return Call(
            self._proxy,
            self._proxy.upstream(user, secret),
            user,
            metadata.get("x-mq-client-id", ""),
            _WAIT_S if remaining_s is None or not math.isfinite(remaining_s) else remaining_s,
            trace_of(metadata) if "traceparent" in metadata else {},
        )

    def _unary(self, name: str, handler: Callable[[Call, Any], Awaitable[Any]]) -> Any:
        response_type = GetMessageClass(METHODS[name].output_type)

        async def answer(request: Any, context: Any) -> Any:
            try:
                response = await handler(self._call(context), decoded(request))
            except Exception as error:
                response = response_type(status=status_of(error))
            self._proxy.counters.count(name, response.status.code)
            return response

        return answer

    def _streamed(self, name: str, handler: Callable[[Call, Any], AsyncIterator[Any]]) -> Any:
        response_type = GetMessageClass(METHODS[name].output_type)

        async def answer(request: Any, context: Any) -> None:
            code = 0
            try:
                async with aclosing(handler(self._call(context), decoded(request))) as responses:  # type: ignore[type-var]
                    async for response in responses:
                        code = code or response.status.code
                        await context.write(response)
            except Exception as error:
                failed = status_of(error)
                code = failed.code
                await context.write(response_type(status=failed))
            self._proxy.counters.count(name, code)

        return answer

    async def _telemetry(self, requests: Any, context: Any) -> None:
        try:
            call = self._call(context)
            async with aclosing(telemetry.telemetry(call, requests)) as commands:  # type: ignore[type-var]
                async for command in commands:
                    await context.write(command)
        except Exception as error:
            failed = status_of(error)
            self._proxy.counters.count("Telemetry", failed.code)
            wrong = isinstance(error, Rejected) and failed.code < Code.INTERNAL_ERROR
            code = grpc.StatusCode.INVALID_ARGUMENT if wrong else grpc.StatusCode.INTERNAL
            if failed.code == Code.UNAUTHORIZED:
                code = grpc.StatusCode.UNAUTHENTICATED
            await context.abort(code, failed.message)
        self._proxy.counters.count("Telemetry", Code.OK)


def trace_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the trace context in the metadata of a call; empty if it is not valid."""
    if not _TRACE_PARENT.fullmatch(metadata["traceparent"]):
        return {}
    found = {"traceparent": metadata["traceparent"]}
    state = metadata.get("tracestate", "")
    if state and len(state) <= _TRACE_STATE_MAX and state.isascii() and state.isprintable():
        found["tracestate"] = state
    return found


def _codecs(name: str) -> tuple[Any, Any]:
    """Return how the requests of a method are read, and its responses written."""
    method = METHODS[name]
    request_type = GetMessageClass(method.input_type)

    def read(data: bytes) -> Any:
        try:
            return request_type.FromString(data)
        except DecodeError as error:  # raised here, gRPC would log it and answer UNKNOWN
            return Undecodable(str(error))

    return read, GetMessageClass(method.output_type).SerializeToString
