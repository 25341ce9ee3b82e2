"""From URLs and settings of Kombu and Celery to the options of Reput's clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kombu.utils.url import parse_url

from reput_client.credentials import Credentials
from reput_client.tls import TLS
from reput_client.transport.address import DEFAULT_PORT

_TLS_NAMES: Final = {"ca_certs": "ca", "certfile": "cert", "keyfile": "key", "server_hostname": "server_name"}
_REQUIRED: Final = (2, "required", "CERT_REQUIRED")


def client_options(urls: Iterable[str], ssl: Mapping[str, Any] | bool | None) -> dict[str, Any]:
    """Return the arguments of clients for URLs such as `reput://user:secret@host:port//`.

    All are addresses of one cluster; the user is that of the first one.

    Raises:
        ValueError: the TLS settings are not known, or ask for certificates not to be checked.
    """
    parsed = [parse_url(url) for url in urls]
    addresses = [f"{each['hostname'] or '127.0.0.1'}:{each['port'] or DEFAULT_PORT}" for each in parsed]
    options: dict[str, Any] = {"address": [*dict.fromkeys(addresses)], "tls": _tls(ssl)}
    if parsed[0]["userid"]:
        options["credentials"] = Credentials(parsed[0]["userid"], parsed[0]["password"] or "")
    return options


def _tls(ssl: Mapping[str, Any] | bool | None) -> TLS | None:
    if not ssl:
        return None
    given = {} if ssl is True else {name: value for name, value in dict(ssl).items() if value is not None}
    unknown = given.keys() - _TLS_NAMES.keys() - {"cert_reqs"}
    if unknown:
        raise ValueError(
            f"the TLS settings have {', '.join(sorted(unknown))}; they may have {', '.join(_TLS_NAMES)}"
        )
    if given.pop("cert_reqs", _REQUIRED[0]) not in _REQUIRED:
        raise ValueError(
            "cert_reqs asks for certificates not to be checked; leave it out, and give ca_certs= for a certificate of "
            "your own authority"
        )
    return TLS(**{_TLS_NAMES[name]: value for name, value in given.items()})
