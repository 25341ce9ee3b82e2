"""Messages as text: JSON lines, readable blocks, and the percent escapes of `reput consume -f`."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from typing import Any

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import rfc3339
from reput_client.errors import NotDeserialized
from reput_client.message_json import NOT_DECODED, message_members
from reput_client.received import ReceivedMessage
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable, printable_body, printable_json

_ESCAPE = re.compile(r"%(?:v\{(?P<encoding>\w+)\}|(?P<letter>.))|\\(?P<control>[nt\\])", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "\\": "\\"}


def json_line(message: ReceivedMessage) -> str:
    """Return a message as one JSON object; see `message_members`."""
    return printable_json(message_members(message, *_value(message)))


def _value(message: ReceivedMessage[Any]) -> tuple[Any, str | None]:
    """Return what --decode made of the body, or `NOT_DECODED` and, if it failed, the reason."""
    try:
        value = message.value
    except NotDeserialized as error:
        return NOT_DECODED, error.reason
    return (NOT_DECODED if isinstance(value, bytes) else value), None  # without --decode it is the body


def _text(message: ReceivedMessage[Any], body: Callable[[bytes], str]) -> str:
    """Return the decoded value as JSON, else the body in printable form, with the reason if it was not decoded."""
    value, error = _value(message)
    if value is not NOT_DECODED:
        return printable_json(value)
    return body(message.body) + (f"  (not decoded: {printable(error)})" if error else "")


def block(message: ReceivedMessage) -> str:
    """Return a message for people: a headline, then the body, indented."""
    head = f"{message.topic}-{message.queue_id}#{message.queue_offset}  {rfc3339(message.store_timestamp_ms)}"
    if message.tag:
        head += f"  tag={message.tag}"
    if message.keys:
        head += f"  keys={' '.join(message.keys)}"
    return f"{printable(head)}\n    " + _text(message, printable_body).replace("\n", "\n    ")


def plain(message: ReceivedMessage) -> str:
    """Return queue, offset, tag and body, separated by tabs; unprintable characters are escaped."""
    body = _text(message, lambda body: printable(body.decode("utf-8", "backslashreplace")))
    return f"{message.queue_id}\t{message.queue_offset}\t{printable(message.tag or '-')}\t{body}"


def renderer(settings: Settings) -> Callable[[ReceivedMessage], str]:
    """Return the function for --output; by default blocks on a terminal and JSON lines on a pipe."""
    form = settings.output or ("table" if sys.stdout.isatty() else "json")
    return {"table": block, "plain": plain}.get(form, json_line)


def compile_format(text: str) -> Callable[[ReceivedMessage], str]:
    r"""Return a function that formats a message by percent escapes; unknown escapes are refused here.

    %t topic, %q queue, %o offset, %i id, %I offset id, %k keys, %T tag, %v body, %s size, %d store time, %h properties,
    %% percent; %v{hex}, %v{base64}, %v{json}; \n and \t.
    """
    for match in _ESCAPE.finditer(text):
        unknown_letter = match["letter"] and match["letter"] not in _LETTERS
        unknown_encoding = match["encoding"] and match["encoding"] not in _ENCODINGS
        if unknown_letter or unknown_encoding:
            raise CommandFailed(
                f"unknown escape {match[0]!r} in the format",
                remedy="one of " + " ".join(f"%{letter}" for letter in _LETTERS) + " %v{hex} %v{base64} %v{json}",
                code=ExitCode.USAGE,
            )

    def render(message: ReceivedMessage) -> str:
        def expand(match: re.Match[str]) -> str:
            if match["control"]:
                return _CONTROLS[match["control"]]
            if match["encoding"]:
                return _ENCODINGS[match["encoding"]](bytes(message.body))
            return _LETTERS[match["letter"]](message)

        return _ESCAPE.sub(expand, text)

    return render


_ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "hex": bytes.hex,
    "base64": lambda body: base64.b64encode(body).decode(),
    "json": lambda body: printable_json(body.decode("utf-8", "backslashreplace")),
}
_LETTERS: dict[str, Callable[[ReceivedMessage], str]] = {
    "t": lambda message: printable(message.topic),
    "q": lambda message: str(message.queue_id),
    "o": lambda message: str(message.queue_offset),
    "i": lambda message: printable(message.message_id),
    "I": lambda message: message.offset_message_id,
    "k": lambda message: printable(" ".join(message.keys)),
    "T": lambda message: printable(message.tag or ""),
    "v": lambda message: _text(message, printable_body),
    "s": lambda message: str(len(message.body)),
    "d": lambda message: rfc3339(message.store_timestamp_ms),
    "h": lambda message: printable_json(dict(message.properties)),
    "%": lambda _: "%",
}
