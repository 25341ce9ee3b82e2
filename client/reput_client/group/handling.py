"""Calling the application's handler with messages, and what becomes of those that it cannot handle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from reput_client.group.failures import Failure, OnFailure, StopRunning, Verdict
from reput_client.group.member import GroupMember
from reput_client.group.taking import Taking
from reput_client.received import ReceivedMessage
from reput_client.session import Session

Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]
