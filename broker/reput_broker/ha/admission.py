"""Proves a slave's user on the port of the log, which has no requests that could be signed.

With the signed request for the master's state, the slave gets a number that is valid once and for a short time. On the
port of the log it first sends that number and an HMAC-SHA256 over it, with its user's secret as the key:

    8 bytes mark, 16 bytes number, 32 bytes HMAC
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Final

import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.model import Need
from reput_broker.ha.frames import HAProtocolError
from reput_protocol.rights import Kind, Right

_MARK: Final = b"\xffRPTAUTH"
_NUMBER_BYTES: Final = 16
_PROOF_BYTES: Final = 32
_FRAME_BYTES: Final = len(_MARK) + _NUMBER_BYTES + _PROOF_BYTES
_PURPOSE: Final = b"reput replication "
_VALID_S: Final = 30.0
_TIMEOUT_S: Final = 5.0
_NUMBERS_MAX: Final = 1024
_REPLICATE: Final = Need(Right.REPLICATE, Kind.CLUSTER)


def proof_frame(number: str, secret: str) -> bytes:
    """Return what a slave sends first on the port of the log.

    Args:
        number: from the master, in hexadecimal digits. Raises ValueError if it is not.
        secret: of the user with which the slave got it.
    """
    raw = bytes.fromhex(number)
    if len(raw) != _NUMBER_BYTES:
        raise ValueError(f"a number of {len(raw)} bytes; it has {_NUMBER_BYTES}")
    return _MARK + raw + _proof(secret.encode(), raw)


def _proof(secret: bytes, number: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + number, "sha256")


class SlaveAdmission:
    """Gives out the numbers, and admits slaves that prove their user."""

    def __init__(self, access: AccessControl, clock: Callable[[], float] = trio.current_time) -> None:
        self._access = access
        self._clock = clock
        self._given: dict[bytes, tuple[str, str, float]] = {}

    def number_for(self, user: str, host: str) -> str:
        """Return a new number for a user at an address, in hexadecimal digits."""
        now = self._clock()
        while self._given:
            oldest = next(iter(self._given))
            if len(self._given) < _NUMBERS_MAX and self._given[oldest][2] > now:
                break
            del self._given[oldest]
        number = secrets.token_bytes(_NUMBER_BYTES)
        self._given[number] = (user, host, now + _VALID_S)
        return number.hex()

    async def admit(self, stream: trio.abc.Stream) -> None:
        """Read the proof of a slave, and no byte more.

        Raises:
            HAProtocolError: it proves nothing, or its user may not replicate.
        """
        frame = b""
        with trio.move_on_after(_TIMEOUT_S):
            while len(frame) < _FRAME_BYTES:
                data = await stream.receive_some(_FRAME_BYTES - len(frame))
                if not data:
                    break
                frame += bytes(data)
                if not frame.startswith(_MARK[: len(frame)]):
                    break
        if len(frame) < _FRAME_BYTES or not frame.startswith(_MARK):
            raise HAProtocolError("it has not proved its user, which access control needs")
        number = frame[len(_MARK) : -_PROOF_BYTES]
        user, host, valid_until = self._given.pop(number, ("", "", 0.0))
        account = self._access.account(user, host)
        if account is None or self._clock() > valid_until:
            raise HAProtocolError("its number is not valid any more; it asks for another")
        if not hmac.compare_digest(frame[-_PROOF_BYTES:], _proof(account.secret, number)):
            raise HAProtocolError(f"it has not proved to be user {user!r}")
        if not account.may(_REPLICATE):
            raise HAProtocolError(f"user {user!r} lacks the right {_REPLICATE}")
