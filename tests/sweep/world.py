"""What others have at a broker, and what a stranger has there."""

from __future__ import annotations

import time
from typing import Any, Final

from reput_broker.access.model import User, Users
from reput_client import Credentials
from reput_protocol.codes import MessageSysFlag, RequestCode
from reput_protocol.commands.base import read_json
from reput_protocol.names import BROKERS_GROUPS, Names, dlq_topic, retry_topic
from reput_protocol.properties import encode_properties
from reput_protocol.rights import rule_of
from reput_protocol.wire.header import HeaderType, Value
from support.group_client import GroupClient
from support.pops import Popped, acknowledge, pop
from support.raw_client import RawClient, in_letters

ADMIN: Final = Credentials("admin", "secret-of-the-admin")
OWNER: Final = Credentials("owner", "secret-of-the-owner")
STRANGER: Final = Credentials("stranger", "secret-of-the-stranger")
CONFIDENTIAL: Final = b"confidential"
"""Is in the bodies and keys of others' messages, and in nothing that the stranger may see."""
BROKER: Final = "broker-a"
OWN: Final = {
    Names.TOPIC: "own-topic",
    Names.TOPICS: "own-topic",
    Names.POPPED_TOPIC: "own-topic",
    Names.GROUP: "own-group",
    Names.GROUPS: "own-group",
    Names.PRODUCER_GROUP: "own-producers",
    Names.CLIENT: "own-client",
    Names.BROKER: BROKER,
}
TOPIC, GROUP, POPPERS = "hidden-topic", "hidden-group", "hidden-poppers"
CLIENT, PRODUCERS = "hidden-client", "hidden-producers"
UNIQUE_ID, DELAYED_ID, HALF_ID = "hidden-id", "hidden-delayed-id", "hidden-half-id"
_HOUR_MS: Final = 3_600_000


def with_stranger(users: Users) -> Users:
    """Return the users, the owner of hidden things, and the stranger, each with all rights on its own."""
    for who, names in ((OWNER, "hidden-*"), (STRANGER, "own-*")):
        rules = (rule_of(f"topic:{names}", ["read", "write", "admin"]), rule_of(f"group:{names}", ["read", "admin"]))
        users = users.with_user(User(who.user, who.secret, rules=rules))
    return users


class World:
    """The topics, groups, messages and members of others, as their administrator makes and sees them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.due_ms = time.time_ns() // 1_000_000 // 1000 * 1000 + _HOUR_MS
        self._admin = RawClient(address, HeaderType.JSON, credentials=ADMIN)
        for topic in (TOPIC, OWN[Names.TOPIC]):
            self._do(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"},
            )
        for group in (GROUP, POPPERS, OWN[Names.GROUP]):
            self._do(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"%s"}' % group.encode())
        schedule = b'{"name":"hidden","when":"@yearly","topic":"%s"}' % TOPIC.encode()
        self._do(RequestCode.PUT_SCHEDULE, {}, schedule)
        self._send("confidential-1", UNIQ_KEY=UNIQUE_ID, KEYS="confidential-key")
        self._send("confidential-2")
        self._send("confidential-3", UNIQ_KEY=DELAYED_ID, TIMER_DELIVER_MS=str(self.due_ms))
        self._half = self._send("confidential-4", TRAN_MSG="true", PGROUP=PRODUCERS, UNIQ_KEY=HALF_ID)
        self.popped: Popped = pop(self._admin, POPPERS, TOPIC, maxMsgNums="1", invisibleTime=str(_HOUR_MS))[0]
        self._do(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {"group": GROUP, "offset": str(self.popped.record.physical_offset), "delayLevel": "-1"},
        )
        place: dict[str, Value] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
        self._do(RequestCode.UPDATE_CONSUMER_OFFSET, place)
        self.join()

    def join(self) -> None:
        """Let the member join, again after the broker has been restarted."""
        self.member = GroupClient(self.address, CLIENT, GROUP, HeaderType.JSON)
        self.member.credentials = OWNER
        self.beat()
        assert self.member.lock(TOPIC, 1) == [1]
        self.member.asked.clear()

    def beat(self) -> None:
        """Keep the member online, which the broker else closes after some time."""
        self.member.heartbeat(TOPIC, producers=(PRODUCERS,))

    def restarted(self) -> None:
        """Connect again."""
        self.close()
        self._admin = RawClient(self.address, HeaderType.JSON, credentials=ADMIN)
        self.join()

    def close(self) -> None:
        """Close the connections."""
        self.member.close()
        self._admin.close()

    @property
    def asked(self) -> list[int]:
        """What the broker has sent to the member, besides questions about its own transactions."""
        self.member.members()  # what was sent before is read with the answer
        return [
            header.code
            for header, body in self.member.asked
            if header.code != RequestCode.CHECK_TRANSACTION_STATE or CONFIDENTIAL not in body
        ]

    def state(self) -> dict[str, Any]:
        """Return what others have; nothing that is named `own-...`."""
        topics = _of_others(self._read(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"])
        groups = self._read(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        producers = self._read(RequestCode.GET_ALL_PRODUCER_INFO)["data"]
        described = self._read(RequestCode.DESCRIBE_GROUP, {"group": GROUP})
        delayed = self._read(RequestCode.LIST_DELAYED_MESSAGES, {"maxNum": "1000"})["messages"]
        return {
            "topics": topics,
            "groups": _of_others(groups["subscriptionGroupTable"]),
            "forbidden": _of_others(groups["forbiddenTable"]),
            "offsets": {
                place: offsets
                for place, offsets in _of_others(self._read(RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]).items()
                if place.partition("@")[2] not in BROKERS_GROUPS
            },
            "locked": self.member.lock(TOPIC, 1),
            "ends": {topic: self._ends(topic) for topic in (TOPIC, dlq_topic(GROUP)) if topic in topics},
            "delayed": [(one["topic"], one["uniqKey"]) for one in delayed if "own" not in one["topic"]],
            "producers": {
                group: sorted(one["clientId"] for one in members)
                for group, members in _of_others(producers).items()
                if group == PRODUCERS
            },
            "members": sorted(one["clientId"] for one in described["members"]),
            "queues": [(one["topic"], one["queueId"], one["committedOffset"]) for one in described["queues"]],
            "schedules": {
                name: schedule
                for name, schedule in self._read(RequestCode.GET_ALL_SCHEDULES)["scheduleTable"].items()
                if "own-" not in schedule["topic"]
            },
            "modes": self._read(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
            "users": self._read_list(RequestCode.AUTH_LIST_USER),
            "rules": self._read_list(RequestCode.AUTH_LIST_ACL),
        }

    def use(self) -> list[str]:
        """Do with others' messages what the stranger must not have prevented; return what failed."""
        failed = []
        try:
            acknowledge(self._admin, POPPERS, TOPIC, self.popped)
        except AssertionError as error:
            failed.append(f"the acknowledgement of others' popped message: {error}")
        before = self._ends(TOPIC)
        self._do(
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": PRODUCERS,
                "tranStateTableOffset": self._half["queueOffset"],
                "commitLogOffset": str(int(str(self._half["msgId"])[16:], 16)),
                "commitOrRollback": str(MessageSysFlag.TRANSACTION_COMMIT),
            },
        )
        if self._ends(TOPIC) == before:
            failed.append("others' half message cannot be committed")
        cancel: dict[str, Value] = {"topic": TOPIC, "key": DELAYED_ID}
        header, body = self._admin.request(RequestCode.CANCEL_DELAYED_MESSAGE, cancel)
        if b'"outcome":"CANCELLED"' not in body:
            failed.append(f"others' delayed message cannot be cancelled: {header.remark} {body!r}")
        return failed

    def _ends(self, topic: str) -> list[str]:
        queues = range(4 if topic == TOPIC else 1)
        ends = (self._do(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)})[0] for queue in queues)
        return [str(end["offset"]) for end in ends]

    def _send(self, body: str, **properties: str) -> dict[str, Value]:
        text = encode_properties(properties).decode()
        flag = MessageSysFlag.TRANSACTION_PREPARED if "TRAN_MSG" in properties else 0
        fields = in_letters(TOPIC, a=PRODUCERS, i=text, f=str(flag))
        return self._do(RequestCode.SEND_MESSAGE_V2, fields, body.encode())[0]

    def _do(self, code: int, ext: dict[str, Value] | None = None, body: bytes = b"") -> tuple[dict[str, Value], bytes]:
        header, answer = self._admin.request(code, ext, body)
        assert header.code == 0, (code, header.code, header.remark)
        return header.ext, answer

    def _read(self, code: int, ext: dict[str, Value] | None = None) -> dict[str, Any]:
        body = self._do(code, ext)[1]
        return read_json(body, loose_bytes_max=len(body))

    def _read_list(self, code: int) -> list[Any]:
        found: list[Any] = read_json(b'{"all":%b}' % self._do(code)[1])["all"]
        return found


def hidden_names(names: Names) -> tuple[tuple[str, str], ...]:
    """Return names of what others have, each with one of the same form that does not exist."""
    if names is Names.TOPICS:
        return tuple((f"own-topic;{one}", f"own-topic;{other}") for one, other in _TOPICS)
    if names is Names.GROUPS:
        return ((f"own-group,{GROUP}", "own-group,missing-group"),)
    if names in (Names.TOPIC, Names.POPPED_TOPIC):
        return _TOPICS
    return {
        Names.GROUP: ((GROUP, "missing-group"), ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_OTHER")),
        Names.PRODUCER_GROUP: ((PRODUCERS, "missing-producers"),),
        Names.CLIENT: ((CLIENT, "missing-client"),),
        Names.BROKER: ((BROKER, "missing-broker"),),
    }[names]


_TOPICS: Final = (
    (TOPIC, "missing-topic"),
    (retry_topic(GROUP), retry_topic("missing-group")),
    (dlq_topic(GROUP), dlq_topic("missing-group")),
    ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_OTHER"),
    ("rmq_sys_wheel_timer", "rmq_sys_other"),
)


def _of_others(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(table.items()) if "own-" not in name and name not in BROKERS_GROUPS}
