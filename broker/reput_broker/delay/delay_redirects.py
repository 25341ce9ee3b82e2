"""Delayed messages are stored in a system topic until their time (RocketMQ: HookUtils).

The level (DELAY) takes precedence over the times (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, in this order). A
message whose time has passed is stored as it is; one that cannot be delayed is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reput_broker.config.sections import DelayConfig
from reput_broker.delay.delayed_record import number_of, timer_out_ms
from reput_broker.remoting.request import Refusal
from reput_protocol import properties as names
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import ErrorCode
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.properties import PROPERTIES_BYTES_MAX, encode_properties
from reput_protocol.record.delays import DELAY_LEVELS_MS
from reput_protocol.record.record import Record

_ROLL_BYTES = 64
"""Room for what rescheduling adds, and for a checksum."""
_TIMES = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)


class DelayRedirects:
    """Redirects delayed messages. `options` are read at every message."""

    def __init__(self, options: DelayConfig, clock_ms: Callable[[], int]) -> None:
        self._options = options
        self._clock_ms = clock_ms

    def redirect(self, record: Record, properties: dict[str, str]) -> Record | None:
        """Return the record to store instead of `record` if its message is delayed, else None.

        `properties`, those of the record, are changed in place.

        Raises:
            Refusal: a delay is not a number, the time is too far ahead, deliver times are disabled,
                or the added properties do not fit.
        """
        level = self._level(properties)
        if level > 0:
            for name in (*_TIMES, names.TIMER_OUT_MS):
                properties.pop(name, None)
            properties[names.DELAY] = str(level)
            return _redirected(record, properties, SCHEDULE_TOPIC, level - 1)
        if names.TIMER_OUT_MS in properties or properties.keys().isdisjoint(_TIMES):
            # TIMER_OUT_MS: the timer delivered it before, and it is forwarded with its properties.
            return None
        return self._timed(record, properties)

    def _level(self, properties: dict[str, str]) -> int:
        text = properties.get(names.DELAY)
        if text is None:
            return 0
        level = number_of(text)
        if level is None:
            raise _illegal(
                f"the delay level {text[:40]!r} is not a number; the levels are 1 to {len(DELAY_LEVELS_MS)}"
            )
        return min(level, len(DELAY_LEVELS_MS))

    def _timed(self, record: Record, properties: dict[str, str]) -> Record | None:
        options = self._options
        now_ms = self._clock_ms()
        if not options.timer_wheel:
            raise Refusal(
                ErrorCode.UNSUPPORTED_REQUEST,
                "messages with a deliver time of their own are disabled here (delay.timer_wheel is false); "
                "use a delay level",
                response_code=int(ResponseCode.SYSTEM_ERROR),
            )
        name = next(name for name in _TIMES if name in properties)
        number = number_of(properties[name])
        if number is None:
            raise _illegal(f"{name} is {properties[name][:40]!r}; a whole number is needed")
        deliver_ms = number
        if name != names.TIMER_DELIVER_MS:
            deliver_ms = now_ms + number * (1000 if name == names.TIMER_DELAY_SEC else 1)
        if deliver_ms <= now_ms:
            if names.TIMER_DEL_UNIQKEY in properties:
                raise _illegal("the message that it cancels is due already")
            return None
        if deliver_ms - now_ms > options.timer_max_delay * 1000:
            raise _illegal(
                f"{name} is {(deliver_ms - now_ms) // 1000} s ahead, but at most {int(options.timer_max_delay)} s are "
                "allowed (delay.timer_max_delay); choose a nearer time"
            )
        properties[names.TIMER_DELIVER_MS] = str(deliver_ms)
        properties[names.TIMER_OUT_MS] = str(timer_out_ms(deliver_ms))
        return _redirected(record, properties, TIMER_TOPIC, 0, spare_bytes=_ROLL_BYTES)


def _redirected(
    record: Record, properties: dict[str, str], topic: str, queue_id: int, *, spare_bytes: int = 0
) -> Record:
    properties[names.REAL_TOPIC] = record.topic
    properties[names.REAL_QUEUE_ID] = str(record.queue_id)
    text = encode_properties(properties)
    if len(text) + spare_bytes > PROPERTIES_BYTES_MAX:
        raise Refusal(
            ErrorCode.TOO_LARGE,
            f"with what a delayed message needs its properties take {len(text) + spare_bytes} bytes, but at most "
            f"{PROPERTIES_BYTES_MAX} fit; shorten them",
        )
    return replace(record, topic=topic, queue_id=queue_id, properties=text, version=0)


def _illegal(text: str) -> Refusal:
    return Refusal(ErrorCode.MALFORMED, text)
