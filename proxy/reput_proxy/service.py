"""The methods of the service, as gRPC calls them: who asks, errors as statuses, counters."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from reput_proxy import messaging_pb2 as pb
from reput_proxy import pulling, receiving, routes, sending, telemetry
from reput_proxy.proxy import Call, Proxy
from reput_proxy.rejections import Code, Rejected, Undecodable, decoded, status_of
from reput_proxy.spans import CallSpan, trace_of

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
METHODS: Final = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
_WAIT_S: Final = 30.0
"""How long a request without a deadline may take."""


_UNARY: Final[dict[str, Callable[[Call, Any], Awaitable[Any]]]] = {
    "QueryRoute": routes.query_route,
    "QueryAssignment": routes.query_assignment,
    "Heartbeat": telemetry.heartbeat,
    "NotifyClientTermination": telemetry.terminated,
    "SendMessage": sending.send,
    "RecallMessage": sending.recall,
    "EndTransaction": sending.end_transaction,
    "AckMessage": receiving.ack,
    "ChangeInvisibleDuration": receiving.change_invisible_duration,
    "ForwardMessageToDeadLetterQueue": receiving.forward_to_dead_letters,
    "UpdateOffset": pulling.update_offset,
    "GetOffset": pulling.get_offset,
    "QueryOffset": pulling.query_offset,
}
_STREAMED: Final[dict[str, Callable[[Call, Any], AsyncIterator[Any]]]] = {
    "ReceiveMessage": receiving.receive,
    "PullMessage": pulling.pull,
}


@dataclass(eq=False, repr=False)
class Service:
    """Answers the calls of a gRPC server."""

    _proxy: Proxy

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

    def _user(self, metadata: Mapping[str, str]) -> tuple[str, str | None]:
        """Return who asks, and the secret.

        Raises:
            Rejected: the request is not signed as it must be.
        """
        if self._proxy.users is None:
            return "", None
        return self._proxy.users.check(metadata.get("authorization"), metadata.get("x-mq-date-time"))

    def _call(
        self, context: Any, metadata: Mapping[str, str], signed: tuple[str, str | None], span: CallSpan | None = None
    ) -> Call:
        user, secret = signed
        remaining_s = context.time_remaining()
        return Call(
            self._proxy,
            self._proxy.upstream(user, secret),
            user,
            metadata.get("x-mq-client-id", ""),
            _WAIT_S if remaining_s is None or not math.isfinite(remaining_s) else remaining_s,
            trace_of(metadata) if span is None else span.trace,
        )

    def _span(self, method: str, request: Any, metadata: Mapping[str, str]) -> CallSpan | None:
        """Begin the span of a call that is signed: others make no spans."""
        spans = self._proxy.spans
        return None if spans is None else spans.begin(f"{SERVICE}/{method}", request, trace_of(metadata))

    def _unary(self, name: str, handler: Callable[[Call, Any], Awaitable[Any]]) -> Any:
        response_type = GetMessageClass(METHODS[name].output_type)

        async def answer(request: Any, context: Any) -> Any:
            metadata = _metadata(context)
            span, code = None, None
            try:
                try:
                    signed = self._user(metadata)
                    span = self._span(name, request, metadata)
                    response = await handler(self._call(context, metadata, signed, span), decoded(request))
                except Exception as error:
                    response = response_type(status=status_of(error))
                code = response.status.code
                self._proxy.counters.count(name, code)
                return response
            finally:
                if span is not None:
                    span.end(request, code)

        return answer

    def _streamed(self, name: str, handler: Callable[[Call, Any], AsyncIterator[Any]]) -> Any:
        response_type = GetMessageClass(METHODS[name].output_type)

        async def answer(request: Any, context: Any) -> None:
            metadata = _metadata(context)
            span, code, is_over = None, 0, False
            try:
                try:
                    signed = self._user(metadata)
                    span = self._span(name, request, metadata)
                    call = self._call(context, metadata, signed, span)
                    async with aclosing(handler(call, decoded(request))) as responses:  # type: ignore[type-var]
                        async for response in responses:
                            code = code or response.status.code
                            await context.write(response)
                except Exception as error:
                    failed = status_of(error)
                    code = failed.code
                    await context.write(response_type(status=failed))
                is_over = True
                self._proxy.counters.count(name, code)
            finally:
                if span is not None:
                    span.end(request, code if is_over else None)

        return answer

    async def _telemetry(self, requests: Any, context: Any) -> None:
        try:
            metadata = _metadata(context)
            call = self._call(context, metadata, self._user(metadata))
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


def _metadata(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


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
