"""The options that all clients have, and how a constructor takes the fields of its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from reput_client.security import Credentials, from_environment
from reput_client.transport.backoff import Backoff

if TYPE_CHECKING:
    from reput_client.security import TLS

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
OptionsT = TypeVar("OptionsT")

CONNECT_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True)
class ClientOptions:
    """What a client is given; the options of each kind of client are a subclass. See the clients for each of them."""

    address: str | Iterable[str]
    _: KW_ONLY
    timeout_s: float = REQUEST_TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    new_backoff: Callable[[], Backoff] = Backoff
    tls: TLS | None = None
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        """Refuse a path or a pair, as other libraries take them; no error shows a secret."""
        if self.timeout_s <= 0 or self.connect_timeout_s <= 0:
            raise ValueError("timeouts must be more than 0 seconds")
        if self.credentials is None:
            object.__setattr__(self, "credentials", from_environment())
        elif not isinstance(self.credentials, Credentials):
            raise TypeError(f"credentials must be Credentials(user, secret), not a {type(self.credentials).__name__}")
        if self.tls is not None:
            from reput_client.security import TLS

            if not isinstance(self.tls, TLS):
                raise TypeError(f'tls must be TLS(ca="ca.pem") or another TLS, not a {type(self.tls).__name__}')


def takes(
    kind: Callable[P, OptionsT],
) -> Callable[[Callable[[SelfT, OptionsT], None]], Callable[Concatenate[SelfT, P], None]]:
    """Make an `__init__` that takes the fields of the dataclass `kind` out of one that takes such a value."""
    fields = inspect.signature(kind)

    def decorate(init: Callable[[SelfT, OptionsT], None]) -> Callable[Concatenate[SelfT, P], None]:
        @wraps(init)
        def __init__(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: N807
            try:
                fields.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{init.__qualname__}() {error}") from None  # names the client
            init(self, kind(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        described: Any = __init__
        described.__signature__ = inspect.Signature([own, *fields.parameters.values()], return_annotation="None")
        return __init__

    return decorate
