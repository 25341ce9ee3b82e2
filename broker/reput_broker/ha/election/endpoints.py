"""A JSON API over HTTP that several addresses offer, any of which may be down, slow or wrong."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import trio

from reput_broker.ha.election.engine import EngineUnavailable

_SHOWN = 200
_OK = 200
_UNABLE = frozenset({500, 502, 503, 504})


class _Body(httpx.AsyncByteStream):
    """A body to send. That of httpx is a generator, which stays open if the connection ends while it is sent."""

    def __init__(self, data: bytes) -> None:
        self._parts = [data] if data else []

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.pop()


class Answer(NamedTuple):
    """The status of an answer, and its body as JSON; a body that is not a JSON object is read as an empty one."""

    status: int
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The error in the body."""
        detail = self.body.get("message") or self.body.get("error") or self.body
        return f"status {self.status}: {str(detail)[:_SHOWN]}"


class Endpoints:
    """Sends requests to one of the addresses, and stays with the one that answered last.

    Args:
        addresses: URLs without a path.
        timeout_s: the time for all addresses together; each gets its share.
        tls: for `https`.
    """

    def __init__(self, addresses: Sequence[str], *, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._addresses = [address.rstrip("/") for address in addresses]
        self._share_s = timeout_s / len(addresses)
        # Proxies and .netrc of the environment do not concern an engine in the broker's own network.
        self._client = httpx.AsyncClient(
            verify=True if tls is None else tls, trust_env=False, timeout=None, follow_redirects=False
        )

    def __str__(self) -> str:
        return ", ".join(self._addresses)

    async def call(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the first answer of an address that is able to give one.

        A request that got no answer is sent to the next address, so it may be carried out more than once.

        Raises:
            EngineUnavailable: no address gave one.
        """
        failures = []
        for _ in range(len(self._addresses)):
            address = self._addresses[0]
            try:
                with trio.fail_after(self._share_s):
                    request = self._request(method, address + path, body, headers)
                    response = await self._client.send(request)
            except trio.TooSlowError:
                failures.append(f"{address}: no response within {self._share_s:.3g} s")
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                failures.append(f"{address}: {_reason(error)}")
            else:
                answer = Answer(response.status_code, _json(response.content))
                if answer.status not in _UNABLE:
                    return answer
                failures.append(f"{address}: {answer.text}")
            self._next()
        raise EngineUnavailable("; ".join(failures))

    async def watch(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        is_enough: Callable[[dict[str, Any]], bool],
    ) -> None:
        """Read an answer that does not end, one JSON object a line, until one of them is enough.

        Raises:
            EngineUnavailable: the address does not answer, or the connection ended.
        """
        address = self._addresses[0]
        text = "the connection was closed"
        try:
            # Cancelling ends the reading from within, which closes the generators of httpx in order.
            with trio.CancelScope() as scope:
                request = self._request(method, address + path, body, headers)
                response = await self._client.send(request, stream=True)
                async with aclosing(response):
                    if response.status_code != _OK:
                        text = Answer(response.status_code, _json(await response.aread())).text
                    else:
                        async for line in response.aiter_lines():
                            if scope.cancel_called or is_enough(_json(line.encode())):
                                scope.cancel()
            if scope.cancelled_caught:
                return
        except (httpx.HTTPError, OSError) as error:
            text = _reason(error)
        self._next()
        raise EngineUnavailable(f"{address}: {text}")

    def _request(self, method: str, url: str, body: object, headers: Mapping[str, str] | None) -> httpx.Request:
        request = self._client.build_request(method, url, json=body, headers=headers)
        request.stream = _Body(request.content)
        return request

    def _next(self) -> None:
        self._addresses.append(self._addresses.pop(0))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return a context that trusts `ca` (None: what the machine trusts), and shows `cert` if there is one. Blocks.

    Raises:
        OSError, ssl.SSLError: a file cannot be read, or is not what it should be.
    """
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def _reason(error: BaseException) -> str:
    """Return the text of an error; of one without a text, as trio's of TLS, that of its cause."""
    cause = error.__cause__ or error.__context__
    if str(error) or cause is None:
        return str(error) or type(error).__name__
    return _reason(cause)


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")[:_SHOWN]} if data else {}
    return value if isinstance(value, dict) else {"message": str(value)[:_SHOWN]}
