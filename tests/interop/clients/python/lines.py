"""The lines of JSON of `interop/client.py`, which drive one of the Python clients.

Libraries of clients may write to stdout: from the import on that goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

_OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
_SAID = threading.Lock()


def run(verbs: Mapping[str, Callable[[dict[str, Any]], object]]) -> None:
    """Carry out requests side by side by functions named in `verbs`, until the end of stdin, which ends the process."""

    def answer(request: dict[str, Any]) -> None:
        try:
            done: dict[str, object] = {"ok": verbs[request["do"]](request)}
        except Exception as error:
            done = {"error": repr(error)}
        say({"id": request["id"], **done})

    say({"event": "ready"})
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
    os._exit(0)


def handler(request: Mapping[str, Any]) -> Callable[[dict[str, object]], bool]:
    """Return what writes a message that the consumer of a request receives, and tells whether the delivery succeeds.

    The first ones of each message fail, as many as the request names.
    """
    seen: Counter[object] = Counter()

    def handle(message: dict[str, object]) -> bool:
        say({"event": "received", "consumer": request["consumer"], "message": message})
        seen[message["body"]] += 1
        return bool(seen[message["body"]] > request.get("fail", 0))

    return handle


def say(line: dict[str, object]) -> None:
    """Write a line."""
    with _SAID:
        print(json.dumps(line), file=_OUT, flush=True)
