"""The settings of groups: 200, 225, 201, 352, 207, 353, and their quotas for reading old messages from the disk: 2001
to 2003 (RocketMQ: AdminBrokerProcessor).
"""

from __future__ import annotations

import trio
from msgspec.structs import replace

from reput_broker.config.properties import read_properties
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.tables.attributes import GROUP_ATTRIBUTES, changed_attributes
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import encode_json
from reput_protocol.commands.group import (
    EXPIRED_ATTRIBUTE,
    DeleteSubscriptionGroupHeader,
    GroupForbidden,
    GroupForbiddenHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupHeader,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    SubscriptionGroupTableHeader,
    SubscriptionGroupTableResult,
)
from reput_protocol.commands.table_sync import SyncTableHeader
from reput_protocol.commands.topic import QUEUES_MAX
from reput_protocol.errors import ErrorCode
from reput_protocol.names import check_group, check_topic, is_system_group
from reput_protocol.rights import Kind, Right

_CONFIG_BYTES_MAX = 4096
_GROUPS_A_TURN = 64
"""Groups of a request after which other tasks run."""


class GroupSettingsProcessor(Processor):
    """Creates, changes, shows and deletes groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.tables.groups
        self._saver = core.tables.group_saver

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    async def create(self, request: Request) -> Response:
        """Create or change a group; it is on disk when this is answered."""
        return await self._put([request.content(SubscriptionGroupConfig)])

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    async def create_list(self, request: Request) -> Response:
        """Create or change several groups, all or none."""
        return await self._put(request.content(SubscriptionGroupList).groups)

    async def _put(self, configs: list[SubscriptionGroupConfig]) -> Response:
        changed = []
        for number, config in enumerate(configs, start=1):
            if number % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            before = self._settings.get(check_group(config.group_name))
            attributes = changed_attributes(
                GROUP_ATTRIBUTES, before.attributes if before else None, config.attributes
            )
            changed.append(replace(config, attributes=attributes))
            size = len(changed[-1].to_json())
            if size > _CONFIG_BYTES_MAX and changed[-1] != before:
                raise Refusal(
                    ErrorCode.TOO_LARGE,
                    f"the settings of group {config.group_name!r} have {size} bytes, and at most {_CONFIG_BYTES_MAX} "
                    "are kept; leave out groupRetryPolicy and subscriptionDataSet, which nothing here uses",
                )
            if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"{config.retry_queue_nums} retry queues; a group has 0 to {QUEUES_MAX} of them",
                )
        self._settings.check_room(config.group_name for config in configs)
        for number, config in enumerate(changed, start=1):
            if number % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if config != self._settings.get(config.group_name):
                self._settings.put(config)
                if not config.consume_enable:
                    self._core.hold.release_group(config.group_name)
        await self._saver.save()
        return Response()

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    async def all(self, request: Request) -> Response:
        """Answer with the whole table, whichever page was requested, and the true total."""
        SubscriptionGroupTableHeader.from_ext(request.ext)
        groups, version = self._settings.all(), self._settings.version
        if not request.is_native and SyncTableHeader.from_ext(request.ext).table_version is None:
            # RocketMQ's slaves and tools know no attribute of ours.
            groups = {name: _without_own_attribute(config) for name, config in groups.items()}
        ext = SubscriptionGroupTableResult(len(groups)).to_ext(request.header_type)
        table = SubscriptionGroupTable(groups, version.to_json(), self._settings.forbidden())
        return Response(0, ext, await write_in_turns(table))

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def one(self, request: Request) -> Response:
        """Answer with a group's settings. For RocketMQ's tools, which rely on it, a missing group is created if its
        user may be a member of it, which would create it too.
        """
        group = SubscriptionGroupHeader.from_ext(request.ext).group
        found = self._core.group_access.settings_of(group)
        if found is None:
            user = request.principal
            creates = not request.is_native and (user is None or user.permits(Right.READ, Kind.GROUP, group))
            found = (self._core.group_access.find_or_create if creates else self._core.group_access.existing)(
                group
            )
        return Response(0, body=found.to_json())

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    async def delete(self, request: Request) -> Response:
        """Delete a group, with its offsets if the request says so. An unknown group counts as deleted."""
        header = DeleteSubscriptionGroupHeader.from_ext(request.ext)
        group = header.group_name
        if is_system_group(group):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT, f"{group!r} cannot be deleted: it belongs to the system"
            )
        if self._settings.get(group) is None and not self._core.tables.offsets.for_group(group):
            check_group(group)
        if header.clean_offset:
            self._core.tables.offsets.remove_group(group)
        self._settings.delete(group)
        await self._saver.save()
        self._core.groups.forget_group(group)
        self._core.hold.release_group(group)
        return Response()

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    async def forbid(self, request: Request) -> Response:
        """Forbid a group to read a topic, permit it again, or only report the state."""
        header = GroupForbiddenHeader.from_ext(request.ext)
        group, topic = check_group(header.group), check_topic(header.topic)
        if header.readable is not None:
            self._core.group_access.existing(group)
            self._settings.set_readable(group, topic, header.readable)
            if not header.readable:
                self._core.hold.release_group(group)
            await self._saver.save()
        return Response(0, body=GroupForbidden(group, topic, self._settings.may_read(group, topic)).to_json())


class ColdQuotaProcessor(Processor):
    """Sets, removes and shows the quotas of groups."""

    def __init__(self, core: Core) -> None:
        self._quotas = core.cold_quotas
        self._group_access = core.group_access

    @serves(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
    def put(self, request: Request) -> Response:
        """Set quotas, all that are named or none."""
        try:
            wanted = read_properties(bytes(request.body))
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{error}; nothing was changed") from None
        for group, text in wanted.items():
            self._group_access.existing(group)
            if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the quota of group {group!r} is {text!r:.80}, and not a number of bytes; nothing was changed",
                )
        for group, text in wanted.items():
            self._quotas.set(group, int(text))
        return Response()

    @serves(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove(self, request: Request) -> Response:
        """Remove the quota of a group; there need not be one."""
        self._quotas.remove(bytes(request.body).decode("utf-8", "replace").strip())
        return Response()

    @serves(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    def show(self, _request: Request) -> Response:
        """Answer with the quotas, and with what groups have read from the disk in this window."""
        return Response(0, body=encode_json(self._quotas.described()))


def _without_own_attribute(config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    if EXPIRED_ATTRIBUTE not in config.attributes:
        return config
    attributes = {name: value for name, value in config.attributes.items() if name != EXPIRED_ATTRIBUTE}
    return replace(config, attributes=attributes)
