"""Stands in for access control where it is off although other machines can connect (`allow_insecure`).

Every client may send and consume there. Administrative requests are taken from this machine only.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput_broker.access.audit import Audited
from reput_broker.access.requests import requirement_of
from reput_broker.request import Refusal, Request
from reput_protocol.errors import ErrorCode
from reput_protocol.wire.header import Value


class InsecureAccess:
    """Refuses administrative requests of other machines, and logs those of this one."""

    def authenticate(self, request: Request) -> None:
        """Do nothing: requests have no user."""

    def challenge(self, request: Request) -> Mapping[str, Value]:
        """Return no fields: requests need no signatures."""
        del request
        return {}

    def authorize(self, request: Request) -> None:
        """Check that an administrative request comes from this machine.

        Raises:
            Refusal: NO_PERMISSION.
        """
        if request.principal is not None or not requirement_of(request.header.code).is_administrative:
            return
        request.traffic = Audited(request, "")
        if not request.client.is_local:
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                "this broker takes administrative requests from its own machine only, because access control is off; "
                "send it from there, or set access.enabled there and sign the request as an administrator",
            )
