"""The admin client, with its methods about brokers and users; modules of this package have the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from msgspec import DecodeError
from msgspec.json import Decoder

from reput_client.admin.message_history import MessageHistoryAdmin
from reput_client.admin.requests import AdminRequests
from reput_client.errors import BrokerNotFound, BrokersFailed
from reput_client.preview import Preview
from reput_client.transport.address import Address, parse_address
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import Session
from reput_client.users import UserDescription, UserTable, with_rules
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.operation import (
    INTAKE_WORDS,
    BrokerDescription,
    ClientDescription,
    ClientDescriptions,
    ConfigChanged,
    ConfigChanges,
    ConfigOption,
    ConfigOptions,
    DisconnectClientHeader,
    FlushedBody,
    Intake,
    IntakeName,
    SetConfigBody,
    SetIntakeHeader,
)
from reput_protocol.commands.replica import (
    HARuntimeInfo,
    PromoteBrokerHeader,
    Promotion,
    QueryReplicaStateHeader,
    ReplicaState,
)
from reput_protocol.commands.statistics import BrokerHistory, ReadHistoryHeader
from reput_protocol.commands.topic import MASTER_ID, ClusterInfo, KVTable
from reput_protocol.commands.users import (
    GROUP_MARK,
    AclHeader,
    AclInfo,
    UserHeader,
    UserInfo,
    subject_name,
    subject_text,
)
from reput_protocol.errors import BodyMalformed, ErrorCode, NotFound, ReputError, RequestNotSupported
from reput_protocol.rights import Rule
from reput_protocol.wire.header import Value
from reput_protocol.wire.signature import check_new_secret, check_user_name

_NO_USERS: Final = (RequestNotSupported,)
_USERS: Final = Decoder(list[UserInfo])
_RULES: Final = Decoder(list[AclInfo])
T = TypeVar("T")


class UserAdmin(AdminRequests):
    """The methods of `Admin` for users and rules, which administrators may call; errors as there.

    Every broker has users of its own, slaves too, and so has a name server that is not a broker. Changes are made at
    all brokers of the cluster, and at the name servers among the client's addresses. `RequestNotSupported`: none of
    them has access control on.
    """

    async def list_users(self) -> UserTable:
        """Return the users and groups with their rules, where they differ, and what has not answered; no secret."""
        places = await self._user_places()
        users, unreached = await self._list_each(places, RequestCode.AUTH_LIST_USER)
        rules, later = await self._list_each({place: places[place] for place in users}, RequestCode.AUTH_LIST_ACL)
        tables = {place: _user_table(users[place], body) for place, body in rules.items()}
        return _combined_table(tables, {**unreached, **later})

    async def create_user(self, name: str, secret: str, *, is_admin: bool = False, groups: Iterable[str] = ()) -> None:
        """Create a user, which may do nothing before `put_rules`, unless it is an administrator or has groups.

        If an earlier call reached some brokers only, this one creates the user at the others. Where it is, it gets the
        secret, and if they are given, administration and groups. If a broker does not answer, the others get the user,
        and BrokersFailed names that one.

        Args:
            secret: travels as it is; use TLS, or the machine of the broker.
            groups: of rules; they have to exist.

        Raises:
            BrokerError: every broker has a user of this name, or a group does not exist.
            ValueError: the name or the secret is not valid.
        """
        ext, groups = _user_ext(name), tuple(groups)
        body = _info_body(secret, is_admin, True, groups)
        places = await self._user_places()
        listed, unreached = await self._list_each(places, RequestCode.AUTH_LIST_USER)
        have = {place: places[place] for place, users in listed.items() if name in _user_names(users)}
        lack = {place: places[place] for place in listed if place not in have}
        if lack and have:
            given = _info_body(secret, is_admin or None, None, groups or None)
            await self._ask_all(have, RequestCode.AUTH_UPDATE_USER, ext, f"alter user {name}", given)
        what = f"create user {name}"
        await self._ask_all(lack or have, RequestCode.AUTH_CREATE_USER, ext, what, body, failed=unreached)

    async def alter_user(
        self,
        name: str,
        *,
        secret: str | None = None,
        is_admin: bool | None = None,
        is_enabled: bool | None = None,
        groups: Iterable[str] | None = None,
    ) -> None:
        """Alter a user; what is None stays as it is. `secret` and `groups` as for `create_user`."""
        body = _info_body(secret, is_admin, is_enabled, groups)
        await self._change_users(RequestCode.AUTH_UPDATE_USER, _user_ext(name), f"alter user {name}", body)

    async def delete_user(self, name: str) -> None:
        """Delete a user with its rules; there need not be one."""
        await self._change_users(RequestCode.AUTH_DELETE_USER, _user_ext(name), f"delete user {name}")

    async def put_rules(self, subject: str, rules: Iterable[Rule]) -> None:
        """Set rules of a user or group, in place of those about the same resources.

        Args:
            subject: the name of a user, or `@` and that of a group of rules, which need not exist.
            rules: at least one; `reput_protocol.rights.rule_of` makes them.
        """
        ext, body = _subject_ext(subject), _rules_body(subject, rules)
        await self._change_users(RequestCode.AUTH_UPDATE_ACL, ext, f"rules of {subject}", body)

    async def add_rules(self, subject: str, rules: Iterable[Rule]) -> None:
        """Give a user or group more rules; those about the same resource and sources are joined with them.

        `subject` and `rules` as for `put_rules`.
        """
        more = tuple(rules)
        resources = {rule.resource for rule in more}
        after = with_rules((await self.list_users()).rules_of(subject) or (), more)
        # Also if nothing changes: a broker that was down may not have them.
        await self.put_rules(subject, [rule for rule in after if rule.resource in resources])

    async def delete_rules(self, subject: str, resource: str | None = None) -> None:
        """Delete the rules of a user or group about a resource such as `topic:orders*`, or all.

        A group without rules is deleted; that is refused while a user has it.
        """
        ext = _subject_ext(subject, resource)
        await self._change_users(RequestCode.AUTH_DELETE_ACL, ext, f"rules of {subject}")

    async def _change_users(self, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes = b"") -> None:
        await self._ask_all(await self._user_places(), code, ext, what, body, absent=_NO_USERS)

    async def _list_each(
        self, places: Mapping[str, Address], code: RequestCode
    ) -> tuple[dict[str, Buffer], dict[str, ReputError]]:
        """Return the answers of the places that have users, and the errors of the others that did not answer.

        Raises:
            BrokersFailed: none has answered. If there is only one place, its own error.
        """
        answers: dict[str, Buffer] = {}
        failures: dict[str, ReputError] = {}
        missing: ReputError | None = None
        for place, address in places.items():
            try:
                answers[place] = (await self._ask_all({place: address}, code, {}, "users"))[place].body
            except _NO_USERS as error:
                missing = error
            except ReputError as error:
                self._session.check_open()
                failures[place] = error
        if not answers and len(failures) > 1:
            raise BrokersFailed("users", failures, [])
        if not answers:
            raise next(iter(failures.values())) if failures else missing or BrokerNotFound("", "")
        return answers, failures

    async def _user_places(self) -> dict[str, Address]:
        """Return the addresses of all brokers, slaves included, and of the name servers that the client was given."""
        session = self._session
        info = await session.cluster(session.deadline(None))
        places: dict[str, Address] = {}
        for name, data in sorted(info.broker_addr_table.items()):
            for number in sorted(data.broker_addrs):
                address = session.brokers.address(name, number)
                if address is not None:
                    places[name if number == MASTER_ID else f"{name}, slave {number}"] = address
        for given in (session.home._replace(others=()), *session.home.others):
            known = {address._replace(others=()) for address in places.values()}
            if given not in known and await self._is_name_server(given):
                places[f"name server {given}"] = given
        return places

    async def _is_name_server(self, address: Address) -> bool:
        """Whether it is a name server and no broker: a broker under another address than its own has its users already.

        An address that does not answer counts as one, so that the request that follows reports it.
        """
        try:
            await self._session.ask_ok(
                RequestCode.GET_BROKER_RUNTIME_INFO, {}, what=f"status of {address}", address=address
            )
        except ReputError:
            self._session.check_open()
            return True
        return False


def _info_body(
    secret: str | None, is_admin: bool | None, is_enabled: bool | None, groups: Iterable[str] | None
) -> bytes:
    """Return a user as a request has it; what is None stays as it is. Raises ValueError: the secret is not valid."""
    return UserInfo(
        password=None if secret is None else check_new_secret(secret),
        user_type=None if is_admin is None else "Super" if is_admin else "Normal",
        user_status=None if is_enabled is None else "enable" if is_enabled else "disable",
        groups=None if groups is None else list(groups),
    ).to_json()


def _user_ext(name: str) -> dict[str, Value]:
    """Return the fields of a request about a user. Raises ValueError: the name is not valid."""
    return UserHeader(check_user_name(name)).to_ext()


def _subject_ext(subject: str, resource: str | None = None) -> dict[str, Value]:
    """Return the fields of a request about rules."""
    return AclHeader(subject_text(subject), resource=resource).to_ext()


def _rules_body(subject: str, rules: Iterable[Rule]) -> bytes:
    """Return rules as a request has them."""
    return AclInfo.of(subject, rules).to_json()


def _user_names(body: Buffer) -> set[str]:
    """Return the names in an answer with users. Raises BodyMalformed."""
    return {user.username or "" for user in _decoded(_USERS, body)}


def _decoded(decoder: Decoder[T], body: Buffer) -> T:
    try:
        return decoder.decode(body or b"[]")
    except DecodeError as error:
        raise BodyMalformed(f"the users cannot be read: {error}") from None


def _user_table(users: Buffer, rules: Buffer) -> UserTable:
    """Return what one broker has, of its answers. Raises BodyMalformed."""
    by_subject: dict[str, tuple[Rule, ...]] = {}
    try:
        for acl in _decoded(_RULES, rules):
            by_subject[subject_name(acl.subject or "")] = tuple(acl.rules())
    except ValueError as error:
        raise BodyMalformed(f"the rules cannot be read: {error}") from None
    found = {}
    for info in _decoded(_USERS, users):
        name = info.username or ""
        found[name] = UserDescription(
            name,
            (info.user_type or "").lower() == "super",
            (info.user_status or "enable").lower() == "enable",
            tuple(info.groups or ()),
            by_subject.get(name, ()),
        )
    groups = {name.removeprefix(GROUP_MARK): rules for name, rules in by_subject.items() if name.startswith(GROUP_MARK)}
    return UserTable(found, groups)


def _combined_table(tables: Mapping[str, UserTable], unreached: Mapping[str, ReputError]) -> UserTable:
    """Return what all brokers that have answered have together, from the first that has it, and where it differs."""
    users: dict[str, UserDescription] = {}
    groups: dict[str, tuple[Rule, ...]] = {}
    for table in tables.values():
        users = {**table.users, **users}
        groups = {**table.groups, **groups}
    differing: dict[str, tuple[str, ...]] = {}
    for name, user in users.items():
        differing[name] = tuple(
            place for place, table in tables.items() if _comparable(table.users.get(name)) != _comparable(user)
        )
    for name, rules in groups.items():
        differing[GROUP_MARK + name] = tuple(
            place for place, table in tables.items() if {*table.groups.get(name, ())} != {*rules}
        )
    found = {name: places for name, places in differing.items() if places}
    return UserTable(users, groups, found, unreached)


def _comparable(user: UserDescription | None) -> object:
    return None if user is None else (user.is_admin, user.is_enabled, {*user.groups}, {*user.rules})


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One member of a broker name, a master or a slave, with its state. What it did not report is None."""

    cluster: str
    broker_name: str
    broker_id: int
    """The announced id: 0 is the master."""
    address: str
    number: int | None = None
    """Its number in a group that elects its master: `broker_id` of its configuration, which `promote_broker` takes."""
    takes_messages: bool | None = None
    """Whether it says that it is a master."""
    epoch: int | None = None
    """Of a master with slaves: its epoch."""
    end_offset: int | None = None
    """The end of its log."""
    lag_bytes: int | None = None
    """Of a slave: how much of its master's log it lacks."""
    slaves: int | None = None
    """Of a master: slaves that are connected."""
    in_sync: int | None = None
    """Of a master: copies that are in sync, its own included."""
    is_copying: bool | None = None
    """Of a slave: whether it receives its master's log."""
    error: str | None = None
    """Why it did not report."""

    @property
    def is_master(self) -> bool:
        """Whether it is announced as the master."""
        return self.broker_id == MASTER_ID


class Admin(MessageHistoryAdmin, UserAdmin):
    """Manages the brokers of a cluster; an async context manager for trio and asyncio.

    Changes are made at the master of every broker, and results of all of them are combined. Methods raise a subclass of
    `BrokerError` if the broker refuses, and `RequestTimeout` or `ConnectFailed` if no answer comes in
    time; if some of several brokers fail, `BrokersFailed` names them.

    Args:
        address: `host:port` of a broker or a name server; of several, the first that answers is used. A broker that is
            not registered with others is managed alone.
        timeout_s: seconds a request may take, including connecting.
    """

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)

    # -- the broker --------------------------------------------------------------------------------------------

    async def broker_status(self, broker_name: str | None = None) -> dict[str, str]:
        """Return a broker's statistics by name, as text (RocketMQ: BrokerRuntimeInfo).

        They are those of the broker at the client's address, or of the named broker's master.
        """
        call = await self._ask_one(broker_name, RequestCode.GET_BROKER_RUNTIME_INFO, {}, "status of the broker")
        return dict(KVTable.from_json(call.body).table)

    async def describe_broker(self, broker_name: str | None = None) -> dict[str, Any]:
        """Return a broker's state: what its page /status shows, and its `checks`.

        It is the broker at the client's address, or the named broker's master.

        Sizes (`..._bytes`) are in bytes, ages (`..._s`) in seconds, times in seconds since 1970.
        """
        call = await self._ask_one(broker_name, RequestCode.DESCRIBE_BROKER, {}, "state of the broker")
        return BrokerDescription.from_json(call.body).status

    async def list_clients(self, broker_name: str | None = None) -> list[ClientDescription]:
        """Return the connections of a broker, this client's included; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.LIST_CLIENTS, {}, "clients of the broker")
        return ClientDescriptions.from_json(call.body).clients

    async def preview_disconnect_client(self, address: str, *, broker_name: str | None = None) -> Preview:
        """Return what `disconnect_client` would do. Raises `NotFound`: no client is connected from there."""
        found = [client for client in await self.list_clients(broker_name) if client.address == address]
        if not found:
            raise NotFound(ErrorCode.NOT_FOUND, f"no client is connected from {address!r}; nothing was disconnected")
        client = found[0]
        who = client.client_id or "no client id yet"
        groups = f", of {', '.join(client.groups)}" if client.groups else ""
        return Preview(
            f"the connection of the {client.role} at {address} ({who}{groups}) is closed",
            (
                "requests without a response yet have an unknown outcome for it",
                "the client reconnects; to keep it out, remove its rights or stop its program",
            ),
        )

    async def disconnect_client(self, address: str, *, broker_name: str | None = None) -> None:
        """Close a client's connection; `address` as `list_clients` has it, `broker_name` as for `describe_broker`.

        Raises:
            NotFound: no client is connected from there.
        """
        ext = DisconnectClientHeader(address).to_ext()
        await self._ask_one(broker_name, RequestCode.DISCONNECT_CLIENT, ext, f"connection of {address}")

    async def broker_config(self, broker_name: str | None = None) -> list[ConfigOption]:
        """Return the options of a broker, with what set each; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.GET_CONFIG, {}, "configuration of the broker")
        return ConfigOptions.from_json(call.body).options

    async def broker_history(
        self,
        begin_s: int,
        end_s: int = 0,
        *,
        rows_max: int = 720,
        has_names: bool = True,
        broker_name: str | None = None,
    ) -> BrokerHistory:
        """Return a broker's figures in the past days; `broker_name` as for `describe_broker`.

        A broker without a console keeps none.

        Args:
            begin_s: where they begin, in seconds since 1970; up to 0, in seconds before now.
            end_s: where they end, likewise.
            rows_max: upper bound of the rows, of 1 to 2016.
            has_names: whether those of groups and topics are wanted; the steps are then at least 10 s.
        """
        ext = ReadHistoryHeader(begin_s, end_s, rows_max, has_names).to_ext()
        call = await self._ask_one(broker_name, RequestCode.READ_HISTORY, ext, "history of the broker")
        return BrokerHistory.from_json(call.body)

    async def set_broker_config(
        self, values: Mapping[str, str], *, broker_name: str | None = None
    ) -> list[ConfigChanged]:
        """Set options that can change while the broker runs, until its next reload or restart.

        Args:
            values: by key, as text without quotes, such as `async` or `500ms`.
            broker_name: as for `describe_broker`.

        Returns:
            The options that changed.

        Raises:
            BrokerError: a key is unknown or needs a restart, or a value is not valid. Nothing was changed.
        """
        body = SetConfigBody(dict(values)).to_json()
        call = await self._ask_one(broker_name, RequestCode.SET_CONFIG, {}, "configuration of the broker", body)
        return ConfigChanges.from_json(call.body).changes

    async def reload_broker_config(self, broker_name: str | None = None) -> list[ConfigChanged]:
        """Have a broker read its file and its environment again, and return every difference.

        `broker_name` as for `describe_broker`.

        Raises:
            BrokerError: there are mistakes in them. Nothing was changed.
        """
        call = await self._ask_one(broker_name, RequestCode.RELOAD_CONFIG, {}, "configuration of the broker")
        return ConfigChanges.from_json(call.body).changes

    async def preview_intake(self, intake: Intake | IntakeName, *, broker_name: str | None = None) -> Preview:
        """Return what `set_intake` would do."""
        wanted = Intake(intake)
        status = await self.describe_broker(broker_name)
        name = status.get("broker_name", broker_name or "the broker")
        check = status.get("checks", {}).get("intake", {"ok": True, "detail": ""})
        before = Intake.OPEN if check["ok"] else Intake(check["detail"].partition(",")[0])
        if before is wanted:
            return Preview(f"broker {name} {INTAKE_WORDS[wanted]} already", is_change=False)
        notes = ["a restart ends it"] if wanted is not Intake.OPEN else []
        if wanted is not Intake.OPEN:
            notes.insert(0, "producers get an error; consumers, delayed messages, retries and transactions continue")
        return Preview(f"broker {name} {INTAKE_WORDS[wanted]} from now on; before, it {INTAKE_WORDS[before]}", notes)

    async def set_intake(self, intake: Intake | IntakeName, *, broker_name: str | None = None) -> Intake:
        """Have the broker take or refuse messages of producers, and return what it did before.

        Returns when the messages that were taken before are on disk. Consumers continue in every state; delayed
        messages, retries and messages of open transactions are still delivered.

        Args:
            intake: `open`; `readonly`: refuses messages; `draining`: also reports that it is not ready, so that load
                balancers send no more clients.
            broker_name: as for `describe_broker`.
        """
        ext = SetIntakeHeader(Intake(intake)).to_ext()
        call = await self._ask_one(broker_name, RequestCode.SET_INTAKE, ext, "intake of the broker")
        return FlushedBody.from_json(call.body).was

    async def flush_log(self, *, broker_name: str | None = None) -> int:
        """Have the broker write its log to disk, and return up to which offset it is there."""
        call = await self._ask_one(broker_name, RequestCode.FLUSH_LOG, {}, "sync of the log")
        return FlushedBody.from_json(call.body).flushed_offset

    async def cluster_info(self) -> ClusterInfo:
        """Return the cluster's brokers and their addresses."""
        call = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, "brokers of the cluster")
        return ClusterInfo.from_json(call.body)

    async def cluster_members(self) -> list[ClusterMember]:
        """Return the members of every broker with their state; one that does not report has an `error`."""
        return await _cluster_members(self._session)

    async def preview_promote(self, broker_id: int, *, force: bool = False) -> Preview:
        """Return what `promote_broker` would do; that the broker has no election is an obstacle."""
        status = await self.describe_broker()
        name, election = status.get("broker_name", ""), status.get("election")
        if not election:
            text = f"broker {name} has no election: its group has no other member that could be the master"
            return Preview(text, is_change=False, obstacle=text, remedy="configure an election: docs/cluster.md")
        notes = ["the master rejects new messages until the replica has all of the log; no message is lost"]
        if force:
            notes = [f"messages that broker {broker_id} does not have are lost"]
        in_sync = [int(number) for number in election.get("in_sync", [])]
        is_behind = broker_id not in in_sync
        return Preview(
            f"member {broker_id} becomes the master of {name}; the master is {election.get('master') or 'unknown'}",
            notes,
            obstacle=f"member {broker_id} is not in sync; in sync are {', '.join(map(str, in_sync)) or 'none'}"
            if is_behind and not force
            else None,
            remedy="wait until it has the log, or --force, which loses what it does not have" if is_behind else None,
            can_force=True,
        )

    async def promote_broker(self, broker_id: int, *, force: bool = False) -> Promotion:
        """Make another member the master of the broker's group, which an engine elects otherwise.

        Args:
            broker_id: the member's own number, as configured.
            force: even a member that is not in sync. What it does not have is lost.

        Raises:
            NotMaster: this broker is not the master; `ext` has the master's address if it is known.
            BrokerError: it was refused, and nothing has changed. The remark says what would be lost by force.
        """
        header = PromoteBrokerHeader(broker_id, force)
        call = await self._ask(RequestCode.PROMOTE_BROKER, header.to_ext(), f"promotion of broker {broker_id}")
        return Promotion.from_json(call.body)


async def _cluster_members(session: Session) -> list[ClusterMember]:
    """Return the members of all brokers that the name service lists, sorted; raises if it does not answer."""
    call = await session.ask_ok(RequestCode.GET_BROKER_CLUSTER_INFO, {}, what="brokers of the cluster")
    info = ClusterInfo.from_json(call.body)
    members: list[ClusterMember] = []
    for name, data in sorted(info.broker_addr_table.items()):
        group = [
            await _reported(session, ClusterMember(data.cluster, name, number, address))
            for number, address in sorted(data.broker_addrs.items())
        ]
        master_end = group[0].end_offset if group and group[0].is_master else None
        members += [_with_lag(member, master_end) for member in group]
    return sorted(members, key=lambda member: (member.cluster, member.broker_name, member.broker_id))


async def _reported(session: Session, member: ClusterMember) -> ClusterMember:
    """Return the member with what it reports."""
    try:
        address = parse_address(member.address)
        what = f"state of {member.broker_name} at {member.address}"
        call = await session.ask_ok(RequestCode.GET_BROKER_HA_STATUS, {}, what=what, address=address)
        copies = HARuntimeInfo.from_json(call.body)
        asked = QueryReplicaStateHeader().to_ext()
        try:
            call = await session.ask_ok(RequestCode.QUERY_REPLICA_STATE, asked, what=what, address=address)
            state = ReplicaState.from_json(call.body)
            number, epoch, end = state.member, state.epoch or None, state.max_offset
        except RequestNotSupported:  # by RocketMQ's brokers
            own_end = 0 if copies.client is None else copies.client.max_offset
            number, epoch = None, None
            end = copies.master_commit_log_max_offset if copies.master else own_end
    except (ReputError, ValueError) as error:
        session.check_open()
        return replace(member, error=str(error))
    member = replace(member, number=number, takes_messages=copies.master)
    if copies.master:
        return replace(
            member, epoch=epoch, end_offset=end, slaves=len(copies.connections), in_sync=1 + copies.in_sync_slave_nums
        )
    is_copying = copies.client is not None and copies.client.activated
    return replace(member, end_offset=end, is_copying=is_copying)


def _with_lag(member: ClusterMember, master_end: int | None) -> ClusterMember:
    if member.is_master or member.end_offset is None or master_end is None:
        return member
    return replace(member, lag_bytes=max(0, master_end - member.end_offset))
