"""The configuration under RocketMQ's names: of the broker (26, 25), of the name service (319, 318), and its option for
reading ahead (2004) (RocketMQ: AdminBrokerProcessor, DefaultRequestProcessor).

Unlike RocketMQ's, the broker refuses what it does not know or cannot change while it runs, by name, and changes
nothing then. A change lasts until the next reload or restart: the file is the operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from typing_extensions import override

from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import ConfigChange
from reput_broker.config.properties import Properties, read_properties, written_properties
from reput_broker.remoting.request import Handler, Processor, Refusal, Request, Response, serves
from reput_broker.tables.config_file import DataVersion
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.body import encode_json
from reput_protocol.commands.operation import ReadAheadHeader
from reput_protocol.errors import ErrorCode

_PERMISSION: Final = "brokerPermission"
_OF_NAME_SERVICES: Final = (RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)
_READS_AHEAD: Final = {"0": "true", "1": "false"}
"""By mode of the request: MADV_NORMAL and MADV_RANDOM of the operating system."""


class LiveOptions(Protocol):
    """Changes of the configuration; see `compose.live_config`."""

    def reload(self) -> list[ConfigChange]:
        """Read the sources again. Raises ConfigError."""

    def set(self, values: Mapping[str, str]) -> list[ConfigChange]:
        """Set live options. Raises ConfigError."""


class Permission(Protocol):
    """Whether the broker takes messages of producers."""

    @property
    def is_writable(self) -> bool:
        """Whether it does."""

    def set_writable(self, writable: bool, peer: str) -> None:
        """Take messages, or refuse them as `reput broker readonly` does."""


class PropertiesProcessor(Processor):
    """Shows and changes the configuration under RocketMQ's names.

    Args:
        clock_ms: milliseconds since the epoch, for the version of the configuration.
        permission: of a broker, for `brokerPermission`.
    """

    def __init__(
        self,
        properties: Properties,
        settings: LiveOptions,
        clock_ms: Callable[[], int],
        permission: Permission | None = None,
    ) -> None:
        self._properties = properties
        self._settings = settings
        self._clock_ms = clock_ms
        self._permission = permission
        self._version = DataVersion().next(clock_ms())

    @override
    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code; those of a broker only if this is one's."""
        found = super().handlers()
        if self._permission is None:
            return {code: handle for code, handle in found.items() if code in _OF_NAME_SERVICES}
        return found

    @serves(RequestCode.GET_NAMESRV_CONFIG, RequestCode.GET_BROKER_CONFIG)
    def show(self, _request: Request) -> Response:
        """Answer with the configuration, a line `name=value` for each property."""
        found = self._properties.all()
        if self._permission is not None:
            found[_PERMISSION] = str(Perm.READ_WRITE if self._permission.is_writable else Perm.READ)
        version = encode_json(self._version.to_json()).decode()
        return Response(0, {"version": version}, written_properties(found))

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_BROKER_CONFIG)
    def update(self, request: Request) -> Response:
        """Change live options, all that are named or none."""
        try:
            wanted = read_properties(bytes(request.body))
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{error}; nothing was changed") from None
        writable = self._taken_permission(wanted)
        try:
            self._settings.set(self._properties.options(wanted))
        except ConfigError as error:
            raise self._refusal(error) from None
        if writable is not None and self._permission is not None:
            self._permission.set_writable(writable, request.client.peer)
        self._version = self._version.next(self._clock_ms())
        return Response()

    @serves(RequestCode.SET_COMMITLOG_READ_MODE)
    def set_read_ahead(self, request: Request) -> Response:
        """Set whether the operating system reads ahead in the log."""
        mode = ReadAheadHeader.from_ext(request.ext).mode
        if mode not in _READS_AHEAD:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"{mode!r:.80} is neither 0 (normal) nor 1 (read what is asked for only); nothing was changed",
            )
        self._settings.set({"store.read_ahead": _READS_AHEAD[mode]})
        self._version = self._version.next(self._clock_ms())
        return Response(
            remark=f"set commitlog readahead mode success, mode: {mode}"
        )  # as RocketMQ's tool prints it

    def _taken_permission(self, wanted: dict[str, str]) -> bool | None:
        """Take `brokerPermission` out; return whether the broker is to take messages, None if it is not named."""
        if self._permission is None or _PERMISSION not in wanted:
            return None
        value = wanted.pop(_PERMISSION)
        if value not in (str(Perm.READ_WRITE), str(Perm.READ)):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"{_PERMISSION}: {value!r:.80} is neither 6 (read and write) nor 4 (read only); nothing was changed",
            )
        return value == str(Perm.READ_WRITE)

    def _refusal(self, error: ConfigError) -> Refusal:
        problems = [
            f"{self._properties.name_of(problem.key)}: {problem.problem}"
            + (f", did you mean {problem.nearest}?" if problem.nearest else "")
            for problem in error.problems
        ]
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"{'; '.join(problems)}; nothing was changed",
            response_code=ResponseCode.NO_PERMISSION,
        )
