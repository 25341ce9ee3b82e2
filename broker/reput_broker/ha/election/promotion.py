"""PROMOTE_BROKER: a planned change of the master."""

from __future__ import annotations

from reput_broker.ha.election.elector import Elector
from reput_broker.ha.election.engine import EngineUnavailable, LeaseLost
from reput_broker.ha.election.mastership import HandOverRefused
from reput_broker.request import Processor, Refusal, Request, Response, serves
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.election import PromoteBrokerHeader, Promotion
from reput_protocol.errors import ErrorCode


class PromotionProcessor(Processor):
    """Hands over to another member, if an engine elects."""

    def __init__(self, core: Core) -> None:
        self._elector = core.tenures if isinstance(core.tenures, Elector) else None
        self._store = core.store

    @serves(RequestCode.PROMOTE_BROKER)
    async def promote(self, request: Request) -> Response:
        """Make the named member the master; see `Elector.hand_over`."""
        header = PromoteBrokerHeader.from_ext(request.ext)
        if self._elector is None:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "no engine elects the master of this broker; set [election], or change ha.role of the brokers",
            )
        try:
            made = await self._elector.hand_over(
                header.broker_id, self._store.max_physical_offset, force=header.force
            )
        except HandOverRefused as refused:
            if refused.master:
                raise Refusal(
                    ErrorCode.NOT_MASTER, f"{refused}; ask {refused.master}", ext={"master": refused.master}
                ) from None
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{refused}; nothing has changed") from None
        except LeaseLost as error:
            text = (
                f"{error.reason}; this broker is no longer the master, and member {header.broker_id} was not named as "
                "its successor"
            )
            raise Refusal(ErrorCode.NOT_MASTER, f"{text}; ask again at the next master") from None
        except EngineUnavailable as error:
            text = f"{error.reason}; whether the replica takes over is unknown, so check the status of the brokers"
            raise Refusal(ErrorCode.TIMEOUT, text) from None
        promotion = Promotion(broker_id=made.member, end_offset=made.end, kept_offset=made.kept)
        return Response(0, {}, promotion.to_json())
