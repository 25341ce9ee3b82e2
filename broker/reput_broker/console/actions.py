"""The actions of the console: one row each, from which its requests, its forms and its tests are made.

A row says what an action is called, where its button is, what it asks for, which rights it needs, what has to be typed
to confirm it, how to find out what it would do, and how to do it. The two functions call the client, as the command
line does; a further action is a further row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from reput_broker.access.model import Account, Need
from reput_broker.console import dead_letters
from reput_broker.console.source import InvalidQuery, Query
from reput_protocol.commands.operation import INTAKE_WORDS, Intake
from reput_protocol.commands.topic import MESSAGE_TYPES, PERMISSIONS, QUEUES_MAX
from reput_protocol.printable import counted
from reput_protocol.quantities import parse_duration
from reput_protocol.record.message import Message
from reput_protocol.rights import Kind, Right, Rule, rule_of

if TYPE_CHECKING:
    from reput_client.admin import Admin
    from reput_client.preview import Preview
    from reput_protocol.commands.group import SubscriptionGroupConfig
    from reput_protocol.record.message import MessageQueue

T = TypeVar("T")
Values: TypeAlias = Mapping[str, Any]
"""What an action was asked to do, by field: a text, a number, a flag, or None for an optional field that is empty."""

_BODY_CHARS: Final = 32 * 1024
_TEXT_CHARS: Final = 4096
_LOGGED_CHARS: Final = 80
_LOGGED_AS: Final = {"user": "account"}
"""Fields that the log names otherwise, as its entries of access control do: `user` is who does it."""


class FieldKind(StrEnum):
    """What a field takes, and how a form shows it.

    `LINES` and `BODY` keep line breaks; `SECRET` is neither shown nor logged; `POSITION` is written as for `reput group
    reset --to`, `DURATION` as `5m`.
    """

    TEXT = "text"
    LINES = "lines"
    BODY = "body"
    NUMBER = "number"
    CHOICE = "choice"
    FLAG = "flag"
    SECRET = "secret"
    POSITION = "position"
    DURATION = "duration"


class Field(NamedTuple):
    """One field of an action; `default` is what a form begins with, `hint` what it says about the field."""

    name: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    is_needed: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 1 << 31
    hint: str = ""

    def read(self, query: Query) -> Any:
        """Return the value that a request has. Raises InvalidQuery."""
        if self.kind is FieldKind.FLAG:
            return query.flag(self.name)
        if self.kind is FieldKind.NUMBER:
            number = query.number(self.name, self.low - 1, self.low, self.high)
            if number < self.low and self.is_needed:
                raise InvalidQuery(f"{self.name} is missing")
            return None if number < self.low else number
        keeps = self.kind in (FieldKind.LINES, FieldKind.BODY, FieldKind.SECRET)
        size_max = _BODY_CHARS if self.kind is FieldKind.BODY else _TEXT_CHARS
        text = query.text(self.name, size_max=size_max, keeps_spaces=keeps)
        if not text:
            if self.is_needed:
                raise InvalidQuery(f"{self.name} is missing")
            return "" if self.kind is FieldKind.BODY else None
        if self.choices and text not in self.choices:
            raise InvalidQuery(f"{self.name} is {text[:40]!r}, and must be one of {', '.join(self.choices)}")
        return _duration(self.name, text) if self.kind is FieldKind.DURATION else text


def _duration(name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidQuery(f"{name}: {error}") from None


class Needed(NamedTuple):
    """A right that an action needs, on what a field names; without a field on the cluster, or any topic or group."""

    right: Right
    kind: Kind
    field: str = ""


class Place(StrEnum):
    """The page that has an action's button: a list, or what the page is about."""

    TOPICS = "topics"
    TOPIC = "topic"
    GROUPS = "groups"
    GROUP = "group"
    DEAD_LETTERS = "dead-letters"
    DELAYED = "delayed"
    TRANSACTIONS = "transactions"
    CLIENTS = "clients"
    CLUSTER = "cluster"
    USERS = "users"
    USER = "user"


class Action(NamedTuple):
    """One action.

    Attributes:
        title: on its button; also the title of its form.
        needs: the rights; the broker checks the same ones again, and others that its requests need.
        preview: returns what it would do. Raises InvalidQuery, ReputError.
        perform: does it, and returns what was done as a sentence.
        typed: the field whose value has to be typed, because the action destroys or skips something; "" if none has.
        about: the field that the page of its button knows.
        is_of_users: whether it is about the users of access control, which only administrators change.
    """

    name: str
    title: str
    place: Place
    fields: tuple[Field, ...]
    needs: tuple[Needed, ...]
    preview: Callable[[Admin, Values], Awaitable[Preview]]
    perform: Callable[[Admin, Values], Awaitable[str]]
    typed: str = ""
    about: str = ""
    is_of_users: bool = False

    def read(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a request. Raises InvalidQuery: one is missing, unknown or not valid."""
        known = {field.name for field in self.fields}
        unknown = next((name for name in members if name not in known), None)
        if unknown is not None:
            raise InvalidQuery(f"{self.name} has no field {unknown[:40]!r}; it has {', '.join(sorted(known))}")
        query = Query(members)
        return {field.name: field.read(query) for field in self.fields}

    def lacking(self, user: Account, values: Values) -> str | None:
        """Return the first right that a user lacks to do it with these values, in words."""
        if self.is_of_users and not user.is_admin:
            return "to change users: an administrator has it"
        for needed in self.needs:
            need = Need(needed.right, needed.kind, values[needed.field] if needed.field else "")
            if not needed.field and needed.kind is not Kind.CLUSTER:
                if not user.may_somewhere(needed.right, needed.kind):
                    return f"{needed.right.value!r} on any {needed.kind.value}"
            elif not user.may(need):
                return str(need)
        return None

    def is_offered(self, user: Account, name: str | None, *, has_users: bool) -> bool:
        """Tell whether a user sees its button on a page about `name`; None: about nothing, or everything."""
        if self.is_of_users:
            return has_users and user.is_admin
        for need in self.needs:
            if need.kind is Kind.CLUSTER:
                is_met = user.may(Need(need.right, need.kind))
            elif need.field == self.about and name is not None:
                is_met = user.may(Need(need.right, need.kind, name))
            else:
                is_met = user.may_somewhere(need.right, need.kind)
            if not is_met:
                return False
        return True

    def logged(self, values: Values) -> dict[str, str]:
        """Return what the log says of the values: never a secret, and nothing of a message's body."""
        hidden = (FieldKind.SECRET, FieldKind.BODY, FieldKind.LINES)
        return {
            _LOGGED_AS.get(field.name, field.name): str(values[field.name])[:_LOGGED_CHARS]
            for field in self.fields
            if field.kind not in hidden and values[field.name] is not None and values[field.name] is not False
        }

    def described(self) -> dict[str, Any]:
        """Return what the page makes a form of."""
        return {
            "name": self.name,
            "title": self.title,
            "place": self.place,
            "about": self.about,
            "typed": self.typed,
            "fields": [field._asdict() for field in self.fields],
        }


# -- topics ------------------------------------------------------------------------------------------------------------

_TOPIC: Final = Field("topic", "Topic", is_needed=True)
_GROUP: Final = Field("group", "Group", is_needed=True)
_TYPE: Final = Field("type", "Type", FieldKind.CHOICE, choices=MESSAGE_TYPES, hint="Type of its messages")
_ADMIN_TOPIC: Final = Needed(Right.ADMIN, Kind.TOPIC, "topic")
_ADMIN_GROUP: Final = Needed(Right.ADMIN, Kind.GROUP, "group")
_ADMIN_CLUSTER: Final = Needed(Right.ADMIN, Kind.CLUSTER)
_SEE_TOPIC: Final = Needed(Right.DESCRIBE, Kind.TOPIC, "topic")
_READ_TOPIC: Final = Needed(Right.READ, Kind.TOPIC, "topic")
_WRITE_TOPIC: Final = Needed(Right.WRITE, Kind.TOPIC, "topic")


def _topic_settings(values: Values) -> dict[str, Any]:
    permission = values["permission"]
    return {
        "queues": values["queues"],
        "perm": None if permission is None else PERMISSIONS[permission],
        "message_type": values["type"],
    }


async def _preview_create_topic(admin: Admin, values: Values) -> Preview:
    return await admin.preview_create_topic(values["topic"], **_topic_settings(values))


async def _create_topic(admin: Admin, values: Values) -> str:
    await admin.create_topic_where_missing(values["topic"], **_topic_settings(values))
    return f"topic {values['topic']} is there"


async def _preview_alter_topic(admin: Admin, values: Values) -> Preview:
    return await admin.preview_change_topic(values["topic"], **_topic_settings(values))


async def _alter_topic(admin: Admin, values: Values) -> str:
    await admin.change_topic(values["topic"], **_topic_settings(values))
    return f"topic {values['topic']} is changed"


async def _preview_delete_topic(admin: Admin, values: Values) -> Preview:
    return await admin.preview_delete_topic(values["topic"])


async def _delete_topic(admin: Admin, values: Values) -> str:
    await admin.delete_topic(values["topic"])
    return f"topic {values['topic']} is deleted"


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(values: Values) -> Message:
    properties = {}
    for line in filter(None, map(str.strip, (values["properties"] or "").splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise InvalidQuery(f"property {line[:40]!r} has no value; write NAME=VALUE")
        properties[name.strip()] = value.strip()
    return Message(
        values["topic"],
        values["body"].encode(),
        tag=values["tag"],
        keys=(values["keys"] or "").split(),
        properties=properties,
        delay_s=values["delay"],
    )


async def _preview_send(admin: Admin, values: Values) -> Preview:
    from reput_client.preview import Preview
    from reput_protocol.errors import TopicNotFound

    message, notes = _message(values), []
    try:
        queues = (await admin.topic_config(message.topic)).write_queue_nums
        if values["queue"] is not None and values["queue"] >= queues:
            raise InvalidQuery(f"queue is {values['queue']}, and {message.topic} has the queues 0 to {queues - 1}")
    except TopicNotFound:
        notes.append(f"topic {message.topic} does not exist; it is created, unless topics.auto_create is off")
    if values["delay"] is not None:
        notes.append(f"consumers get it {values['delay']:g} s later")
    where = "" if values["queue"] is None else f", queue {values['queue']}"
    return Preview(f"a message of {counted(len(message.body), 'byte')} is sent to {message.topic}{where}", notes)


async def _send(admin: Admin, values: Values) -> str:
    from reput_broker.console.own_client import OneBrokerAdmin

    assert isinstance(admin, OneBrokerAdmin), "a page has this one"
    receipt = await admin.producer().send(_message(values), ack="flushed", queue_id=values["queue"])
    place = f"queue {receipt.queue_id}, offset {receipt.queue_offset}"
    if values["delay"] is not None:
        place = "waiting for its time"
    return f"message {receipt.message_id} is stored: {place}"


async def _preview_replay(admin: Admin, values: Values) -> Preview:
    return await dead_letters.preview_replay(admin, values["group"], values["offsets"])


async def _replay(admin: Admin, values: Values) -> str:
    return await dead_letters.replay(admin, values["group"], values["offsets"])


async def _preview_cancel(admin: Admin, values: Values) -> Preview:
    return await admin.preview_cancel_delayed(values["topic"], values["key"])


async def _cancel(admin: Admin, values: Values) -> str:
    results = await admin.cancel_delayed(values["topic"], values["key"])
    outcomes = [result.outcome.value.lower().replace("_", " ") for result in results]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))


async def _preview_end(admin: Admin, values: Values, *, commit: bool) -> Preview:
    return await admin.preview_end_transaction(values["topic"], values["transaction"], commit=commit)


async def _end(admin: Admin, values: Values, *, commit: bool) -> str:
    found = await admin.open_transaction(values["topic"], values["transaction"])
    await admin.end_transaction(found, commit=commit)
    return f"transaction {values['transaction']} is {'committed' if commit else 'rolled back'}"


# -- groups ------------------------------------------------------------------------------------------------------------

_QUEUE: Final = Field("queue", "Queue", FieldKind.NUMBER, hint="Only this one; empty: all")


def _new_group(values: Values) -> SubscriptionGroupConfig:
    from reput_protocol.commands.group import SubscriptionGroupConfig

    retry_max = {} if values["retry_max"] is None else {"retry_max_times": values["retry_max"]}
    return SubscriptionGroupConfig(values["group"], **retry_max)


async def _preview_create_group(admin: Admin, values: Values) -> Preview:
    return await admin.preview_create_group(_new_group(values))


def _is_yes(value: Any) -> bool | None:
    """Return what a choice between yes and no says; None if nothing was chosen."""
    return None if value is None else value == "yes"


async def _create_group(admin: Admin, values: Values) -> str:
    await admin.put_group(_new_group(values))
    return f"group {values['group']} is created"


def _group_changes(values: Values) -> dict[str, Any]:
    return {
        "retry_max": values["retry_max"],
        "consume": _is_yes(values["consume"]),
        "broadcast": _is_yes(values["broadcast"]),
        "expired": values["expired"],
    }


async def _preview_alter_group(admin: Admin, values: Values) -> Preview:
    return (await admin.changed_group(values["group"], **_group_changes(values)))[0]


async def _alter_group(admin: Admin, values: Values) -> str:
    _, config = await admin.changed_group(values["group"], **_group_changes(values))
    await admin.put_group(config)
    return f"group {values['group']} is changed"


async def _preview_delete_group(admin: Admin, values: Values) -> Preview:
    return await admin.preview_delete_group(values["group"], clean_offsets=not values["keep_offsets"])


async def _delete_group(admin: Admin, values: Values) -> str:
    await admin.delete_group_whole(values["group"], clean_offsets=not values["keep_offsets"])
    return f"group {values['group']} is deleted"


_Plan: TypeAlias = Callable[["Admin", Values], Awaitable["dict[MessageQueue, int]"]]


async def _plan_reset(admin: Admin, values: Values) -> dict[MessageQueue, int]:
    from reput_client.positions import Position

    position = Position.parse(values["to"])
    if position is None:
        raise InvalidQuery(
            f"to is {values['to'][:40]!r}; write earliest, latest, an offset, -N for the last N of each queue, "
            "@2026-01-02T03:04:05Z or @-15m"
        )
    return await admin.plan_reset(values["group"], values["topic"], queue_id=values["queue"], **position.of_reset())


async def _plan_rewind(admin: Admin, values: Values) -> dict[MessageQueue, int]:
    if (values["message"] is None) == (values["count"] is None):
        raise InvalidQuery("name either the message or the count")
    group, topic = values["group"], values["topic"]
    if values["message"] is not None:
        return await admin.plan_reset(group, topic, message=values["message"])
    return await admin.plan_reset(group, topic, shift=-values["count"], queue_id=values["queue"])


async def _plan_skip(admin: Admin, values: Values) -> dict[MessageQueue, int]:
    group, topic, queue, count = (values[name] for name in ("group", "topic", "queue", "count"))
    if count is None:
        return await admin.plan_reset(group, topic, when=-1, queue_id=queue)
    if queue is None:
        raise InvalidQuery("with a count, name the queue")
    return await admin.plan_reset(group, topic, shift=count, queue_id=queue)


async def _preview_offsets(admin: Admin, values: Values, *, plan: _Plan) -> Preview:
    return await admin.preview_set_offsets(values["group"], await plan(admin, values))


async def _set_offsets(admin: Admin, values: Values, *, plan: _Plan) -> str:
    offsets = await plan(admin, values)
    await admin.set_offsets(values["group"], offsets)
    queues = counted(len(offsets), "queue")
    return f"group {values['group']} continues there, in {queues} of {values['topic']}"


# -- clients and brokers -----------------------------------------------------------------------------------------------


async def _preview_disconnect(admin: Admin, values: Values) -> Preview:
    return await admin.preview_disconnect_client(values["address"])


async def _disconnect(admin: Admin, values: Values) -> str:
    await admin.disconnect_client(values["address"])
    return f"the connection of {values['address']} is closed"


async def _preview_intake(admin: Admin, values: Values) -> Preview:
    return await admin.preview_intake(values["intake"])


async def _set_intake(admin: Admin, values: Values) -> str:
    await admin.set_intake(values["intake"])
    return f"the broker {INTAKE_WORDS[Intake(values['intake'])]}"


async def _preview_promote(admin: Admin, values: Values) -> Preview:
    return await admin.preview_promote(values["broker_id"], force=values["force"])


async def _promote(admin: Admin, values: Values) -> str:
    made = await admin.promote_broker(values["broker_id"], force=values["force"])
    lost = made.end_offset - made.kept_offset
    return f"broker {made.broker_id} becomes the master" + (f"; {lost} bytes are lost" if lost else "")


# -- users -------------------------------------------------------------------------------------------------------------

_USER: Final = Field("user", "User", is_needed=True)
_SUBJECT: Final = Field("subject", "User or named set of rules", is_needed=True, hint="alice, or @readers")
_RIGHTS: Final = Field("rights", "Rights", is_needed=True, hint="read, write, admin, describe; joined by commas")
_RESOURCE: Final = Field("resource", "On", is_needed=True, hint="topic:orders*, group:billing or cluster")
_SOURCES: Final = Field("sources", "From", hint="Addresses or networks, such as 10.0.0.0/8; empty: all")
_USER_GROUPS: Final = Field("groups", "Sets of rules", hint="Names, separated by spaces")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple((text or "").replace(",", " ").split())


async def _preview_create_user(admin: Admin, values: Values) -> Preview:
    from reput_client.users import preview_create_user

    table, groups = await admin.list_users(), _names(values["groups"])
    return _checked(lambda: preview_create_user(table, values["user"], is_admin=values["admin"], groups=groups))


async def _create_user(admin: Admin, values: Values) -> str:
    groups = _names(values["groups"])
    await _valid(lambda: admin.create_user(values["user"], values["secret"], is_admin=values["admin"], groups=groups))
    return f"user {values['user']} is created"


def _user_changes(values: Values) -> dict[str, Any]:
    groups = values["groups"]
    return {
        "is_admin": _is_yes(values["admin"]),
        "is_enabled": _is_yes(values["enabled"]),
        "groups": None if groups is None else () if groups == "-" else _names(groups),
    }


async def _preview_alter_user(admin: Admin, values: Values) -> Preview:
    from reput_client.users import preview_alter_user

    has_secret = values["secret"] is not None
    return preview_alter_user(
        await admin.list_users(), values["user"], has_new_secret=has_secret, **_user_changes(values)
    )


async def _alter_user(admin: Admin, values: Values) -> str:
    await _valid(lambda: admin.alter_user(values["user"], secret=values["secret"], **_user_changes(values)))
    return f"user {values['user']} is changed"


async def _preview_delete_user(admin: Admin, values: Values) -> Preview:
    from reput_client.users import preview_delete_user

    return preview_delete_user(await admin.list_users(), values["user"])


async def _delete_user(admin: Admin, values: Values) -> str:
    await admin.delete_user(values["user"])
    return f"user {values['user']} is deleted"


def _rule(values: Values, *, is_denial: bool) -> Rule:
    rights, sources = _names(values["rights"]), _names(values["sources"])
    return _checked(lambda: rule_of(values["resource"], rights, is_denial=is_denial, sources=sources))


async def _preview_rule(admin: Admin, values: Values, *, is_denial: bool) -> Preview:
    from reput_client.users import preview_rules

    rule = _rule(values, is_denial=is_denial)
    return preview_rules(await admin.list_users(), values["subject"], [rule])


async def _add_rule(admin: Admin, values: Values, *, is_denial: bool) -> str:
    rule = _rule(values, is_denial=is_denial)
    await _valid(lambda: admin.add_rules(values["subject"], [rule]))
    return f"the rules of {values['subject']} are changed"


async def _preview_remove_rules(admin: Admin, values: Values) -> Preview:
    from reput_client.users import preview_remove_rules

    resources = [values["resource"]] if values["resource"] else []
    return preview_remove_rules(await admin.list_users(), values["subject"], resources)


async def _remove_rules(admin: Admin, values: Values) -> str:
    await _valid(lambda: admin.delete_rules(values["subject"], values["resource"]))
    return f"rules of {values['subject']} are removed"


def _checked(work: Callable[[], T]) -> T:
    try:
        return work()
    except ValueError as error:
        raise InvalidQuery(str(error)) from None


async def _valid(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except ValueError as error:
        raise InvalidQuery(str(error)) from None


# -- the table ---------------------------------------------------------------------------------------------------------

_K: Final = FieldKind
_YES_NO: Final = ("yes", "no")
_ROWS: Final = (
    Action(
        "create-topic", "Create topic", Place.TOPICS,
        (_TOPIC, Field("queues", "Queues", _K.NUMBER, True, "4", low=1, high=QUEUES_MAX),
         Field("permission", "Permission", _K.CHOICE, True, "rw", tuple(PERMISSIONS)), _TYPE),
        (_ADMIN_TOPIC,), _preview_create_topic, _create_topic,
    ),
    Action(
        "send-message", "Send message", Place.TOPIC,
        (_TOPIC, Field("body", "Body", _K.BODY), Field("tag", "Tag"),
         Field("keys", "Keys", hint="Separated by spaces"),
         Field("properties", "Properties", _K.LINES, hint="NAME=VALUE, one per line"),
         Field("queue", "Queue", _K.NUMBER, hint="Empty: round robin"),
         Field("delay", "Delay", _K.DURATION, hint="Deliver after this time: 30s, 5m, 2h")),
        (_WRITE_TOPIC,), _preview_send, _send, about="topic",
    ),
    Action(
        "alter-topic", "Change topic", Place.TOPIC,
        (_TOPIC, Field("queues", "Queues", _K.NUMBER, low=1, high=QUEUES_MAX),
         Field("permission", "Permission", _K.CHOICE, choices=tuple(PERMISSIONS)), _TYPE),
        (_ADMIN_TOPIC,), _preview_alter_topic, _alter_topic, about="topic",
    ),
    Action(
        "delete-topic", "Delete topic", Place.TOPIC, (_TOPIC,),
        (_ADMIN_TOPIC,), _preview_delete_topic, _delete_topic, typed="topic", about="topic",
    ),
    Action(
        "create-group", "Create group", Place.GROUPS,
        (_GROUP, Field("retry_max", "Retries", _K.NUMBER, hint="Before a message is a dead letter; empty: 16")),
        (_ADMIN_GROUP,), _preview_create_group, _create_group,
    ),
    Action(
        "reset-group", "Reset offsets", Place.GROUP,
        (_GROUP, _TOPIC,
         Field("to", "Continue at", _K.POSITION, True,
               hint="earliest, latest, an offset, -N (the last N), @2026-01-02T03:04:05Z or @-15m"), _QUEUE),
        (_ADMIN_GROUP, _SEE_TOPIC),
        partial(_preview_offsets, plan=_plan_reset), partial(_set_offsets, plan=_plan_reset),
        typed="group", about="group",
    ),
    Action(
        "rewind-group", "Rewind", Place.GROUP,
        (_GROUP, _TOPIC, Field("message", "To the message", hint="Its offset message id"),
         Field("count", "Or back by", _K.NUMBER, low=1, hint="Messages of each queue"), _QUEUE),
        (_ADMIN_GROUP, _SEE_TOPIC),
        partial(_preview_offsets, plan=_plan_rewind), partial(_set_offsets, plan=_plan_rewind),
        typed="group", about="group",
    ),
    Action(
        "skip-group", "Skip messages", Place.GROUP,
        (_GROUP, _TOPIC, _QUEUE, Field("count", "Messages", _K.NUMBER, low=1, hint="Empty: all up to the end")),
        (_ADMIN_GROUP, _SEE_TOPIC),
        partial(_preview_offsets, plan=_plan_skip), partial(_set_offsets, plan=_plan_skip),
        typed="group", about="group",
    ),
    Action(
        "alter-group", "Change settings", Place.GROUP,
        (_GROUP, Field("retry_max", "Retries", _K.NUMBER, hint="Before a message is a dead letter"),
         Field("consume", "May consume", _K.CHOICE, choices=_YES_NO),
         Field("broadcast", "May broadcast", _K.CHOICE, choices=_YES_NO),
         Field("expired", "Expired messages", _K.CHOICE, choices=("drop", "dead-letter"))),
        (_ADMIN_GROUP,), _preview_alter_group, _alter_group, about="group",
    ),
    Action(
        "delete-group", "Delete group", Place.GROUP,
        (_GROUP, Field("keep_offsets", "Keep the committed offsets", _K.FLAG)),
        (_ADMIN_GROUP,), _preview_delete_group, _delete_group, typed="group", about="group",
    ),
    Action(
        "replay-dead-letters", "Replay", Place.DEAD_LETTERS,
        (_GROUP, Field("offsets", "Offsets", hint="Separated by commas; empty: all that were not replayed before")),
        (Needed(Right.READ, Kind.GROUP, "group"), Needed(Right.WRITE, Kind.TOPIC)),
        _preview_replay, _replay, about="group",
    ),
    Action(
        "cancel-delayed", "Cancel", Place.DELAYED,
        (_TOPIC, Field("key", "Message id or key", is_needed=True)),
        (_WRITE_TOPIC, _READ_TOPIC), _preview_cancel, _cancel, typed="topic", about="topic",
    ),
    Action(
        "commit-transaction", "Commit", Place.TRANSACTIONS,
        (_TOPIC, Field("transaction", "Transaction id", is_needed=True)),
        (_WRITE_TOPIC, _READ_TOPIC), partial(_preview_end, commit=True), partial(_end, commit=True), about="topic",
    ),
    Action(
        "roll-back-transaction", "Roll back", Place.TRANSACTIONS,
        (_TOPIC, Field("transaction", "Transaction id", is_needed=True)),
        (_WRITE_TOPIC, _READ_TOPIC),
        partial(_preview_end, commit=False), partial(_end, commit=False), typed="topic", about="topic",
    ),
    Action(
        "disconnect-client", "Disconnect", Place.CLIENTS, (Field("address", "Address", is_needed=True),),
        (_ADMIN_CLUSTER,), _preview_disconnect, _disconnect,
    ),
    Action(
        "set-intake", "Accept or reject messages", Place.CLUSTER,
        (Field("intake", "The broker", _K.CHOICE, True, "readonly", tuple(Intake),
               hint="draining also reports that it is not ready"),),
        (_ADMIN_CLUSTER,), _preview_intake, _set_intake,
    ),
    Action(
        "promote-broker", "Hand over to another master", Place.CLUSTER,
        (Field("broker_id", "Member", _K.NUMBER, True, hint="Its broker_id"),
         Field("force", "Even if it is not in sync: messages that it lacks are lost", _K.FLAG)),
        (_ADMIN_CLUSTER,), _preview_promote, _promote, typed="broker_id",
    ),
    Action(
        "create-user", "Create user", Place.USERS,
        (_USER, Field("secret", "Secret", _K.SECRET, True, hint="16 or more characters"),
         Field("admin", "May do everything", _K.FLAG), _USER_GROUPS),
        (), _preview_create_user, _create_user, is_of_users=True,
    ),
    Action(
        "alter-user", "Change", Place.USER,
        (_USER, Field("secret", "New secret", _K.SECRET, hint="16 or more characters; empty: unchanged"),
         Field("admin", "May do everything", _K.CHOICE, choices=_YES_NO),
         Field("enabled", "Enabled", _K.CHOICE, choices=_YES_NO),
         _USER_GROUPS._replace(hint="Names, separated by spaces; - for none; empty: unchanged")),
        (), _preview_alter_user, _alter_user, about="user", is_of_users=True,
    ),
    Action(
        "delete-user", "Delete", Place.USER, (_USER,),
        (), _preview_delete_user, _delete_user, typed="user", about="user", is_of_users=True,
    ),
    Action(
        "allow", "Allow", Place.USERS, (_SUBJECT, _RIGHTS, _RESOURCE, _SOURCES),
        (), partial(_preview_rule, is_denial=False), partial(_add_rule, is_denial=False), is_of_users=True,
    ),
    Action(
        "deny", "Deny", Place.USERS, (_SUBJECT, _RIGHTS, _RESOURCE, _SOURCES),
        (), partial(_preview_rule, is_denial=True), partial(_add_rule, is_denial=True), is_of_users=True,
    ),
    Action(
        "remove-rules", "Remove rules", Place.USERS,
        (_SUBJECT, _RESOURCE._replace(is_needed=False, hint="Empty: all of its rules")),
        (), _preview_remove_rules, _remove_rules, is_of_users=True,
    ),
)  # fmt: skip
ACTIONS: Final[Mapping[str, Action]] = {action.name: action for action in _ROWS}
"""All actions by name."""


def offered(user: Account, place: str, names: Sequence[str], *, has_users: bool) -> dict[str, list[str]]:
    """Return the actions whose buttons a user sees at a place, by what they are about; "" is about nothing."""

    def of(name: str | None) -> Iterable[str]:
        return (
            action.name
            for action in _ROWS
            if action.place == place and action.is_offered(user, name, has_users=has_users)
        )

    return {name: [*of(name or None)] for name in (names or ("",))}
