"""Traces that RocketMQ's clients send to the trace topic (RocketMQ: TraceDataEncoder): reading one message's body.

A body has one entry after the other, each ended by 0x02, with fields separated by 0x01. The first field says which
event it is; older clients omit the last fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ENTRY_END: Final = "\x02"
_FIELD_END: Final = "\x01"
_NOT_SENT: Final = "null"
"""What Java writes for a missing text."""


@dataclass(frozen=True, slots=True)
class ClientTrace:
    """One event of one message, as its client reports it.

    Attributes:
        kind: `Pub` a send, `SubBefore` and `SubAfter` a consumption before and after the listener, `EndTransaction`
            the end of a transaction, `Recall` the cancellation of a delayed message.
        message_id: the producer's unique id.
        group: the producer's or consumer's group; "" in what old clients report after a consumption.
        at_ms: by the client's clock; None in what old clients report after a consumption.
        cost_ms: how long the send or the listener took.
        is_success: whether it succeeded; None if the event says nothing of it.
        request_id: the same in the two events of a consumption.
        retry_times: how often the message had been redelivered.
        client_host: the producer's address, if it reports it.
        detail: of the end of a transaction its state, of a failed consumption its code.
    """

    kind: str
    message_id: str
    group: str = ""
    at_ms: int | None = None
    cost_ms: int | None = None
    is_success: bool | None = None
    request_id: str = ""
    retry_times: int = 0
    client_host: str = ""
    detail: str = ""


def decode_client_traces(body: bytes) -> list[ClientTrace]:
    """Return the events in the body of a message of the trace topic; entries that are not understood are left out."""
    found = []
    for entry in body.decode("utf-8", "replace").split(_ENTRY_END):
        fields = ["" if field == _NOT_SENT else field for field in entry.split(_FIELD_END)]
        try:
            trace = _decode(fields)
        except (IndexError, ValueError):
            continue
        if trace is not None:
            found.append(trace)
    return found


def _decode(fields: list[str]) -> ClientTrace | None:
    match fields[0]:
        case "Pub":
            # kind, time, region, group, topic, id, tag, keys, store host, size, cost, type, [offset id], success,
            # [host]
            is_old = len(fields) == 13
            return ClientTrace(
                "Pub",
                fields[5],
                group=fields[3],
                at_ms=int(fields[1]),
                cost_ms=int(fields[10]),
                is_success=fields[12 if is_old else 13] == "true",
                client_host="" if is_old else _field(fields, 14),
            )
        case "SubBefore":
            # kind, time, region, group, request id, id, retries, keys
            return ClientTrace(
                "SubBefore",
                fields[5],
                group=fields[3],
                at_ms=int(fields[1]),
                request_id=fields[4],
                retry_times=int(fields[6]),
            )
        case "SubAfter":
            # kind, request id, id, cost, success, keys, [code], [time, group]
            code = _field(fields, 6)
            return ClientTrace(
                "SubAfter",
                fields[2],
                group=_field(fields, 8),
                at_ms=int(fields[7]) if _field(fields, 7) else None,
                cost_ms=int(fields[3]),
                is_success=fields[4] == "true",
                request_id=fields[1],
                detail=_CONSUME_RESULTS.get(code, "") if fields[4] != "true" else "",
            )
        case "EndTransaction":
            # kind, time, region, group, topic, id, tag, keys, store host, type, transaction id, state, from a check
            state = fields[11].lower().replace("_", " ")
            return ClientTrace("EndTransaction", fields[5], group=fields[3], at_ms=int(fields[1]), detail=state)
        case "Recall":
            # kind, time, region, group, topic, id, success
            return ClientTrace(
                "Recall", fields[5], group=fields[3], at_ms=int(fields[1]), is_success=fields[6] == "true"
            )
    return None


_CONSUME_RESULTS: Final = {"1": "timed out", "2": "raised an exception", "3": "returned null", "4": "failed"}
"""RocketMQ: ConsumeReturnType, by its ordinal."""


def _field(fields: list[str], number: int) -> str:
    return fields[number] if number < len(fields) else ""
