"""Proves a slave and its master to each other on the port of the log, which has no requests that could be signed.

With the signed request for the master's state, the slave gets a number that is valid once and for a short time. On the
port of the log it first sends that number, one of its own, where it has connected to, and an HMAC-SHA256, with its
user's secret as the key:

    8 bytes mark, 16 bytes number, 16 bytes own number, 2 bytes length and text of the address, 32 bytes HMAC

The master checks it and answers with a mark of 8 bytes and an HMAC of its own, before anything of the log. Both cover
who proves what to whom: user, cluster, broker name, epoch, both numbers, and the connection. With TLS that is known by
what only its two ends have in common. Without TLS the address must be one of the master's, so that a program at another
one cannot pass the proof on.

Slaves of earlier versions send the mark, the number and an HMAC over it, and get no answer; see `ha.mutual_proof`.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.model import Account, Need
from reput_broker.ha.frames import HAProtocolError
from reput_broker.ha.master_proof import mac_of
from reput_protocol.rights import Kind, Right

log = structlog.get_logger(__name__)

_OLD_MARK: Final = b"\xffRPTAUTH"
_MARK: Final = b"\xffRPTAUT2"
_MASTER_MARK: Final = b"\xffRPTMSTR"
_NUMBER_BYTES: Final = 16
_PROOF_BYTES: Final = 32
_LENGTH: Final = struct.Struct(">H")
_ADDRESS_BYTES_MAX: Final = 512
_OLD_PURPOSE: Final = b"reput replication "
_VALID_S: Final = 30.0
_TIMEOUT_S: Final = 5.0
_NUMBERS_MAX: Final = 1024
_REPLICATE: Final = Need(Right.REPLICATE, Kind.CLUSTER)


@dataclass(frozen=True, slots=True)
class Group:
    """What both ends must agree on: the group, and the epoch of its master."""

    cluster: str
    broker_name: str
    epoch: int


def old_proof_frame(number: str, secret: str) -> bytes:
    """Return what a slave sends first on the port of the log of a master that cannot prove itself.

    Args:
        number: from the master, in hexadecimal digits. Raises ValueError if it is not.
        secret: of the user with which the slave got it.
    """
    raw = _number_of(number)
    return _OLD_MARK + raw + _old_proof(secret.encode(), raw)


async def prove(stream: trio.abc.Stream, number: str, user: str, secret: str, group: Group, dialled: str) -> None:
    """Prove a slave's user to its master, and wait for the master's proof.

    Args:
        number: from the master, in hexadecimal digits.
        dialled: the address that the slave has connected to, as it knows it.

    Raises:
        ValueError: the number is not valid.
        HAProtocolError: the other end has not proved to be the master. Nothing else was read.
    """
    raw, own = _number_of(number), secrets.token_bytes(_NUMBER_BYTES)
    address = f"{dialled} {_end(stream, is_remote=True)}".encode()[:_ADDRESS_BYTES_MAX]
    parts = _parts(user, group, raw, own, address, _channel(stream))
    proof = mac_of(secret.encode(), "reput slave", *parts)
    await stream.send_all(_MARK + raw + own + _LENGTH.pack(len(address)) + address + proof)
    answer = await _read(stream, len(_MASTER_MARK) + _PROOF_BYTES)
    expected = _MASTER_MARK + mac_of(secret.encode(), "reput master", *parts)
    if not hmac.compare_digest(answer, expected):
        raise HAProtocolError(
            "it has not proved to be the master; see its log. With TLS, no proxy may end the connection in between"
        )


def _number_of(text: str) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != _NUMBER_BYTES:
        raise ValueError(f"a number of {len(raw)} bytes; it has {_NUMBER_BYTES}")
    return raw


def _parts(
    user: str, group: Group, number: bytes, own: bytes, address: bytes, channel: bytes
) -> tuple[str | bytes, ...]:
    return (user, group.cluster, group.broker_name, str(group.epoch), number, own, address, channel)


def _channel(stream: trio.abc.Stream) -> bytes:
    """Return what only the two ends of a connection with TLS have in common; empty without TLS."""
    if not isinstance(stream, trio.SSLStream):
        return b""
    return bytes(stream.get_channel_binding("tls-unique") or b"")


def _end(stream: trio.abc.Stream, *, is_remote: bool) -> str:
    """Return the address of one end of a connection, `ip:port`; empty if it has none."""
    inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if not isinstance(inner, trio.SocketStream):
        return ""
    host, port = (inner.socket.getpeername() if is_remote else inner.socket.getsockname())[:2]
    return f"{host.removeprefix('::ffff:')}:{port}"


async def _read(stream: trio.abc.Stream, size: int) -> bytes:
    """Read so many bytes and no more; return less if they do not arrive in time."""
    data = b""
    with trio.move_on_after(_TIMEOUT_S):
        while len(data) < size:
            piece = await stream.receive_some(size - len(data))
            if not piece:
                break
            data += bytes(piece)
    return data


def _old_proof(secret: bytes, number: bytes) -> bytes:
    return hmac.digest(secret, _OLD_PURPOSE + number, "sha256")


class SlaveAdmission:
    """Gives out the numbers, and admits slaves that prove their user.

    Args:
        group: of this tenure.
        own_addresses: returns where slaves reach the log of this master, besides the local ends of its connections.
        needs_mutual_proof: whether slaves of earlier versions are refused.
    """

    def __init__(
        self,
        access: AccessControl,
        group: Group,
        own_addresses: Callable[[], tuple[str, ...]],
        *,
        needs_mutual_proof: bool = True,
    ) -> None:
        self._access = access
        self._group = group
        self._own_addresses = own_addresses
        self._needs_mutual_proof = needs_mutual_proof
        self._given: dict[bytes, tuple[str, str, float]] = {}

    def number_for(self, user: str, host: str) -> str:
        """Return a new number for a user at an address, in hexadecimal digits."""
        now = trio.current_time()
        while self._given:
            oldest = next(iter(self._given))
            if len(self._given) < _NUMBERS_MAX and self._given[oldest][2] > now:
                break
            del self._given[oldest]
        number = secrets.token_bytes(_NUMBER_BYTES)
        self._given[number] = (user, host, now + _VALID_S)
        return number.hex()

    async def admit(self, stream: trio.abc.Stream) -> None:
        """Read the proof of a slave, and no byte more; prove this master.

        Raises:
            HAProtocolError: it proves nothing, or its user may not replicate.
        """
        mark = await _read(stream, len(_MARK))
        if mark == _OLD_MARK:
            await self._admit_old(stream)
            return
        if mark != _MARK:
            raise HAProtocolError("it has not proved its user, which access control needs")
        fixed = await _read(stream, 2 * _NUMBER_BYTES + _LENGTH.size)
        if len(fixed) < 2 * _NUMBER_BYTES + _LENGTH.size:
            raise HAProtocolError("its proof is not complete")
        (length,) = _LENGTH.unpack(fixed[-_LENGTH.size :])
        rest = await _read(stream, min(length, _ADDRESS_BYTES_MAX) + _PROOF_BYTES)
        number, own, address = (fixed[:_NUMBER_BYTES], fixed[_NUMBER_BYTES : -_LENGTH.size], rest[:-_PROOF_BYTES])
        account, channel = self._account(number), _channel(stream)
        parts = _parts(account.name, self._group, number, own, address, channel)
        if not hmac.compare_digest(rest[-_PROOF_BYTES:], mac_of(account.secret, "reput slave", *parts)):
            raise HAProtocolError(f"it has not proved to be user {account.name!r}, or follows another master or epoch")
        if not channel:
            self._check_address(address.decode("ascii", "replace").split(" "), _end(stream, is_remote=False))
        self._check_right(account)
        await stream.send_all(_MASTER_MARK + mac_of(account.secret, "reput master", *parts))

    async def _admit_old(self, stream: trio.abc.Stream) -> None:
        """Admit a slave of an earlier version, whose proof is bound to nothing but its number."""
        if self._needs_mutual_proof:
            raise HAProtocolError(
                "it is of an earlier version of Reput, whose proof can be passed on; upgrade it, or set "
                "ha.mutual_proof = false until then"
            )
        frame = await _read(stream, _NUMBER_BYTES + _PROOF_BYTES)
        if len(frame) < _NUMBER_BYTES + _PROOF_BYTES:
            raise HAProtocolError("its proof is not complete")
        number = frame[:_NUMBER_BYTES]
        account = self._account(number)
        if not hmac.compare_digest(frame[_NUMBER_BYTES:], _old_proof(account.secret, number)):
            raise HAProtocolError(f"it has not proved to be user {account.name!r}")
        self._check_right(account)
        log.warning(
            "slave_of_earlier_version",
            user=account.name,
            hint="its proof can be passed on; upgrade it, then remove ha.mutual_proof = false",
        )

    def _account(self, number: bytes) -> Account:
        user, host, valid_until = self._given.pop(number, ("", "", 0.0))
        account = self._access.account(user, host)
        if account is None or trio.current_time() > valid_until:
            raise HAProtocolError("its number is not valid any more; it asks for another")
        return account

    def _check_address(self, dialled: list[str], local: str) -> None:
        """Check that a slave without TLS has connected to this master, and not to a program that passes it on."""
        own = {local, *self._own_addresses()} - {""}
        if own.isdisjoint(dialled):
            raise HAProtocolError(
                f"it has connected to {dialled[0]}, and this master is at {' and '.join(sorted(own))}: a program may "
                "pass its connection on. Set advertise to the address that slaves connect to, or use TLS"
            )

    def _check_right(self, account: Account) -> None:
        if not account.may(_REPLICATE):
            raise HAProtocolError(f"user {account.name!r} lacks the right {_REPLICATE}")
