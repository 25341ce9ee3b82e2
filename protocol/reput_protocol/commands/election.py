"""A planned change of the master of a group of brokers. The request is Reput's."""

from __future__ import annotations

from typing import Final

from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import Body
from reput_protocol.commands.header import I64, CommandHeader
from reput_protocol.commands.request import RequestType
from reput_protocol.rights import Right


class PromoteBrokerHeader(CommandHeader):
    """Header of PROMOTE_BROKER: make a member of the group the master. The master answers.

    With `force`, also a member that is not in sync; what it does not have is lost. Without a master, the named member
    answers a forced request itself.
    """

    broker_id: I64
    force: bool = False


class Promotion(Body):
    """Answer body of PROMOTE_BROKER.

    Attributes:
        broker_id: the next master; it serves once it has opened its log as master.
        end_offset: the end of the log of the broker that answers.
        kept_offset: up to where the next master has that log; the rest is lost to readers.
    """

    broker_id: I64
    end_offset: I64
    kept_offset: I64


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (RequestType(RequestCode.PROMOTE_BROKER, PromoteBrokerHeader, cluster=Right.ADMIN),)
