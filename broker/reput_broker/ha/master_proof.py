"""Proves a master to its slaves, with each answer that a slave acts on.

A slave that has a user sends a number of its own with each request. The answer then has an HMAC-SHA256, with the user's
secret as the key, over that number, the request's code, the names of the group, and the whole answer. So a slave
neither truncates its log nor takes over a table because of an answer that anything else has sent or changed.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Awaitable, Mapping
from typing import Final

import structlog

from reput_broker.access.model import Account
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import ClientAnswer, Handled, Handler, Request, Response, Result
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.table import REQUESTS
from reput_protocol.wire.header import Value, value_text

log = structlog.get_logger(__name__)

_NONCE: Final = "replicaNonce"
_PROOF: Final = "masterProof"
_LENGTH: Final = struct.Struct(">I")


def mac_of(secret: bytes, *parts: str | bytes) -> bytes:
    """Return the HMAC-SHA256 over parts, each preceded by its length, so that no other parts have the same."""
    found = hmac.new(secret, digestmod="sha256")
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(_LENGTH.pack(len(data)))
        found.update(data)
    return found.digest()


def _proof(secret: bytes, group: tuple[str, str], code: int, nonce: str, ext: Mapping[str, Value], body: bytes) -> str:
    fields = [text for name in sorted(ext) if ext[name] is not None for text in (name, value_text(ext[name]))]
    return mac_of(secret, "reput answer of the master", *group, str(code), nonce, str(len(fields)), *fields, body).hex()


def prove(request: Request, answer: Response, group: tuple[str, str]) -> None:
    """Add the proof to an answer, if the request asks for it.

    Args:
        group: the name of the cluster, and that of its brokers.
    """
    user = request.principal
    if isinstance(user, Account) and _asks_for_proof(request) and answer.code == ResponseCode.SUCCESS:
        nonce = str(request.ext[_NONCE])
        proof = _proof(user.secret, group, request.header.code, nonce, answer.ext, answer.body)
        answer.ext = {**answer.ext, _PROOF: proof}


def _asks_for_proof(request: Request) -> bool:
    return isinstance(request.principal, Account) and isinstance(request.ext.get(_NONCE), str)


def proving(handlers: Mapping[int, Handler], group: tuple[str, str]) -> dict[int, Handler]:
    """Return the handlers of a master; those whose answers slaves act on prove it if the request asks for that.

    AWAIT_TABLE_CHANGES, which is answered later, proves it itself.

    Args:
        group: the name of the cluster, and that of its brokers.
    """

    def wrapped(handler: Handler) -> Handler:
        def handle(request: Request) -> Result:
            result = handler(request)
            return _prove(result, request) if _asks_for_proof(request) else result

        async def _prove(result: Result, request: Request) -> Handled:
            answer = await result if isinstance(result, Awaitable) else result
            if isinstance(answer, Response):
                prove(request, answer, group)
            return answer

        return handle

    return {code: wrapped(handler) if REQUESTS[code].proves_master else handler for code, handler in handlers.items()}


class MasterNotProven(RemoteUnreachable):
    """A broker has not proved that it is the master of this slave's group. Its answer was not used."""


class MasterClient(RemotingClient):
    """Sends a slave's requests to its master, and checks that the answers are the master's.

    Args:
        address: of the master, `host:port`.
        config: of the slave. Without a user it checks nothing.
    """

    def __init__(self, address: str, config: BrokerConfig) -> None:
        credentials = config.access.credentials()
        super().__init__(address, tls=config.tls, credentials=credentials)
        self._secret = None if credentials is None else credentials.secret.encode()
        self._group = config.cluster, config.broker_name
        self._must_prove = config.ha.mutual_proof
        self.is_proven = False
        """Whether the last answer was proven."""
        self._has_warned = False

    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        """Send a request and return its answer, whatever its code.

        Raises:
            RemoteUnreachable: there is no answer.
            MasterNotProven: it does not prove to be the master's. Errors need no proof, since a slave that gets one
                only tries again; that the request is unknown does, since the slave would then follow RocketMQ's rules.
        """
        if self._secret is None:
            return await super().call(code, ext, body, timeout_s=timeout_s)
        nonce = secrets.token_hex(16)
        answer = await super().call(code, {**ext, _NONCE: nonce}, body, timeout_s=timeout_s)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            return answer
        proof = answer.ext.get(_PROOF)
        fields = {name: value for name, value in answer.ext.items() if name != _PROOF}
        expected = _proof(self._secret, self._group, code, nonce, fields, answer.body)
        self.is_proven = isinstance(proof, str) and hmac.compare_digest(
            proof.encode("utf-8", "replace"), expected.encode()
        )
        if self.is_proven:
            return answer
        if self._must_prove or proof is not None:
            raise MasterNotProven(
                self.address,
                f"its response to request {code} does not prove that it is a master of {'/'.join(self._group)} that "
                "knows the secret of this slave's user; if it is of an earlier version of Reput, without access "
                "control, or RocketMQ's, set ha.mutual_proof = false until it is replaced",
            )
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "master_not_proven",
                master=self.address,
                hint="ha.mutual_proof is false, so anything at this address is followed; remove that once all "
                "brokers have this version and access control",
            )
        return answer
