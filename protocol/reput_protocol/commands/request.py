"""The type of a row in the table of requests (`commands.table`): all that the code of a request decides.

Access checks, the answers of slaves and of masters without a lease, limits of bodies, counters and the documentation of
requests derive from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.body import Body
from reput_protocol.commands.header import CommandHeader
from reput_protocol.names import Names
from reput_protocol.rights import Right

if TYPE_CHECKING:
    from reput_protocol.commands.named_fields import NamedField


class Sender(StrEnum):
    """Who sends a request."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    CLIENT = "client"
    OPERATOR = "operator"
    BROKER = "broker"
    TO_CLIENTS = "broker, to its clients"


class Content(Enum):
    """What a body has, which decides how large it may be."""

    VALUES = "values, parsed at once"
    PUT = "messages, and nothing is done but to append them"
    MESSAGES = "messages"
    TABLE = "a whole table, as large as a frame"


class Kind(Enum):
    """What a request does, which decides the brokers that serve it; the text is what a slave does with it.

    CHANGES: it changes something that slaves copy. A slave refuses it, and so does a master that may have been
    replaced, or that completes what an earlier run began.
    MASTER_ONLY: only a master knows the answer.
    READS: it gives out messages. A new master does so once it knows which are confirmed.
    OFFSETS: it asks for the offsets of a group.
    ANY: every broker serves it, because it changes nothing, or something of that broker alone.
    """

    CHANGES = "rejects it, since it changes something"
    MASTER_ONLY = "rejects it, since only a master can respond to it"
    READS = "serves messages, if `ha.slave_read_enabled` permits it and it knows that they are confirmed"
    OFFSETS = "serves it once it has its master's offsets"
    ANY = "serves it"


class RequestType(Struct, frozen=True):
    """One request.

    Attributes:
        header, body: None: without fields, without a body or with one that is no JSON object.
        topics, groups: the right on each topic and group that a field of header or body names, by the field's type. A
            field that is absent and may be needs none.
        cluster: the right on the cluster, which covers all that fields name.
        unnamed: the right on the cluster if no field names anything.
        fields: exceptions by the name of the field (`mqSet.topic`): another right, or why it needs none.
        handler_checks: rights that the handler checks itself, in words.
        writes_something: whether its user must be allowed to send to some topic, whichever.
        refusal: response code of a slave's or former master's refusal.
        completes_first: whether a master refuses it while it completes what an earlier run began.
        newest_only: whether a master does not answer any more once it may have been replaced.
        changes_tables: whether it changes tables that slaves copy besides the log; the answer may wait for them.
        proves_master: whether a slave acts on its answer, which the master therefore proves to be its own.
        waits: whether its `sysFlag` may ask to wait for messages.
        pops: whether it gives out messages as a pop does; a new master does so once it knows which are confirmed.
        pool: RocketMQ's thread pool, for its metrics.
        is_oneway: whether the sender waits for no answer.
        unserved: why a broker or name server may have no handler for it.
    """

    code: RequestCode
    header: type[CommandHeader] | None = None
    body: type[Body] | None = None
    sender: Sender = Sender.OPERATOR
    topics: Right | None = None
    groups: Right | None = None
    cluster: Right | None = None
    unnamed: Right | None = None
    fields: Mapping[str, Right | str] = {}
    handler_checks: str = ""
    writes_something: bool = False
    content: Content = Content.VALUES
    kind: Kind = Kind.ANY
    refusal: ResponseCode = ResponseCode.SYSTEM_BUSY
    completes_first: bool = False
    newest_only: bool = False
    proves_master: bool = False
    waits: bool = False
    pops: bool = False
    changes_tables: bool = False
    pool: str = "admin"
    is_oneway: bool = False
    unserved: str = ""

    @property
    def is_administrative(self) -> bool:
        """Whether it is logged for an audit, and refused from other machines while access control is off."""
        return Right.ADMIN in (self.topics, self.groups, self.cluster, *self.fields.values())

    @property
    def changes(self) -> bool:
        """Whether it changes something that slaves copy."""
        return self.kind is Kind.CHANGES

    def right_on(self, named: NamedField) -> Right | None:
        """Return the right that is needed on what a field names; None if none is."""
        exception = self.fields.get(named.path)
        if exception is not None:
            return exception if isinstance(exception, Right) else None
        if named.names in (Names.TOPIC, Names.TOPICS, Names.POPPED_TOPIC):
            return self.topics
        return self.groups if named.names in (Names.GROUP, Names.GROUPS) else None


class NotServed(NamedTuple):
    """A request of RocketMQ that is not served."""

    code: int
    name: str
    reason: str
