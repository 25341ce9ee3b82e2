"""Why a port cannot be opened, and what helps."""

from __future__ import annotations

import errno
from typing import Final

PRIVILEGED_BELOW: Final = 1024
"""The default of Linux (net.ipv4.ip_unprivileged_port_start)."""


def port_refusal(error: OSError, port: int, other: str) -> str:
    """Return the system's reason and a remedy.

    Args:
        other: what to choose another one of: `port`, or the names of options.
    """
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return f"{reason}; stop what uses it or choose another {other}"
    if error.errno == errno.EACCES and port < PRIVILEGED_BELOW:
        return f"{reason}; ports below {PRIVILEGED_BELOW} need CAP_NET_BIND_SERVICE; choose another {other}"
    return f"{reason}; choose another {other}"
