"""Quotas for reading old messages from the disk: 2001 to 2003 (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

from reput_broker.config.properties import read_properties
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.groups.group_access import GroupAccess
from reput_broker.request import Handler, Refusal, Request, Response
from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import encode_json
from reput_protocol.errors import ErrorCode


class ColdQuotaProcessor:
    """Sets, removes and shows the quotas of groups."""

    def __init__(self, quotas: ColdQuotas, groups: GroupAccess) -> None:
        self._quotas = quotas
        self._groups = groups

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.put,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.remove,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self.show,
        }

    def put(self, request: Request) -> Response:
        """Set quotas, all that are named or none."""
        try:
            wanted = read_properties(bytes(request.body))
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{error}; nothing was changed") from None
        for group, text in wanted.items():
            self._groups.existing(group)
            if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the quota of group {group!r} is {text!r:.80}, and not a number of bytes; nothing was changed",
                )
        for group, text in wanted.items():
            self._quotas.set(group, int(text))
        return Response()

    def remove(self, request: Request) -> Response:
        """Remove the quota of a group; there need not be one."""
        self._quotas.remove(bytes(request.body).decode("utf-8", "replace").strip())
        return Response()

    def show(self, _request: Request) -> Response:
        """Answer with the quotas, and with what groups have read from the disk in this window."""
        return Response(0, body=encode_json(self._quotas.described()))
