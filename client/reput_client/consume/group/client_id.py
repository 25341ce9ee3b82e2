"""The name of one client among the members of a group."""

from __future__ import annotations

import os
import time
from typing import Final

_FIRST: Final = -1
_last_ns = _FIRST


def new_client_id(local_ip: str) -> str:
    """Return an id that no other client has: address, process and a number, as RocketMQ's clients write it.

    Members sort these ids to share the queues out, so an id must stay the same for as long as its client is a member.
    """
    global _last_ns
    _last_ns = max(time.time_ns(), _last_ns + 1)  # two clients of one tick of the clock differ all the same
    return f"{local_ip}@{os.getpid()}#{_last_ns}"
