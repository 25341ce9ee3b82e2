"""RocketMQ's names and units of options, for its tools: `fileReservedTime` is `store.file_reserved_time` in hours
(RocketMQ: BrokerConfig, MessageStoreConfig, NamesrvConfig, NettyServerConfig)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from reput_broker.config.description import option_fields, option_value, shown
from reput_broker.config.errors import ConfigError, ConfigProblem, nearest_key
from reput_broker.config.model import BrokerConfig
from reput_protocol.names import TRACE_TOPIC

_ORIGIN: Final = "update of the configuration"
_QUEUE_UNIT_BYTES: Final = 20


class _Form(NamedTuple):
    """How RocketMQ writes a value, and what an option's text is for what it writes."""

    written: Callable[[Any], str]
    text: Callable[[str], str]


def _counted(unit: str, in_unit: float) -> _Form:
    """Return the form of a number of units, one of which is `in_unit` of the option's value."""
    return _Form(lambda value: str(round(value / in_unit)), lambda text: f"{_number(text)}{unit}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r:.80} is not a whole number")
    return int(text)


def _flush(text: str) -> str:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    if text not in modes:
        raise ValueError(f"{text!r:.80} is neither SYNC_FLUSH nor ASYNC_FLUSH")
    return modes[text]


def _inverse(text: str) -> str:
    return {"true": "false", "false": "true"}.get(text.lower(), text)


def _joined(separator: str) -> _Form:
    return _Form(lambda values: separator.join(map(str, values)), str)


_PLAIN: Final = _Form(lambda value: str(value).lower() if isinstance(value, bool) else str(value), str)
_MS: Final = _counted("ms", 0.001)
_SECONDS: Final = _counted("s", 1)
_HOURS: Final = _counted("h", 3600)
_BYTES: Final = _counted("B", 1)
_PERCENT: Final = _Form(lambda value: f"{round(100 * value)}", lambda text: f"{_number(text) / 100:g}")
_UNITS: Final = _Form(
    lambda value: str(value * _QUEUE_UNIT_BYTES), lambda text: str(_number(text) // _QUEUE_UNIT_BYTES)
)
_FLUSH: Final = _Form(lambda value: f"{value.upper()}_FLUSH", _flush)
_INVERSE: Final = _Form(lambda value: "false" if value else "true", _inverse)

_OF_ANY: Final = {
    "listenPort": ("port", _PLAIN),
    "bindAddress": ("host", _PLAIN),
    "serverChannelMaxIdleTimeSeconds": ("limits.idle_timeout", _SECONDS),
}
_OF_BROKER: Final = {
    **_OF_ANY,
    "brokerClusterName": ("cluster", _PLAIN),
    "brokerName": ("broker_name", _PLAIN),
    "brokerId": ("broker_id", _PLAIN),
    "namesrvAddr": ("name_servers", _joined(";")),
    "registerNameServerPeriod": ("register_interval", _MS),
    "haListenPort": ("ha_port", _PLAIN),
    "haMasterAddress": ("ha.master_ha_address", _PLAIN),
    "brokerRole": ("ha.role", _PLAIN),
    "inSyncReplicas": ("ha.in_sync_replicas", _PLAIN),
    "haMaxGapNotInSync": ("ha.max_gap_not_in_sync", _BYTES),
    "slaveTimeout": ("ha.slave_timeout", _MS),
    "haSendHeartbeatInterval": ("ha.send_heartbeat_interval", _MS),
    "haHousekeepingInterval": ("ha.housekeeping_interval", _MS),
    "haTransferBatchSize": ("ha.transfer_batch_size", _BYTES),
    "slaveReadEnable": ("ha.slave_read_enabled", _PLAIN),
    "autoCreateTopicEnable": ("topics.auto_create", _PLAIN),
    "defaultTopicQueueNums": ("topics.default_queues", _PLAIN),
    "autoCreateSubscriptionGroup": ("groups.auto_create", _PLAIN),
    "channelExpiredTimeout": ("groups.heartbeat_timeout", _MS),
    "useServerSideResetOffset": ("groups.reset_tells_members", _INVERSE),
    "enablePropertyFilter": ("filters.sql", _PLAIN),
    "storeReplyMessageEnable": ("replies.store", _PLAIN),
    "rejectTransactionMessage": ("transactions.reject", _PLAIN),
    "transactionTimeOut": ("transactions.timeout", _MS),
    "transactionCheckMax": ("transactions.check_max", _PLAIN),
    "transactionCheckInterval": ("transactions.check_interval", _MS),
    "transactionOpMsgMaxSize": ("transactions.op_message_size", _BYTES),
    "transactionOpBatchInterval": ("transactions.op_interval", _MS),
    "timerWheelEnable": ("delay.timer_wheel", _PLAIN),
    "timerMaxDelaySec": ("delay.timer_max_delay", _SECONDS),
    "mappedFileSizeTimerLog": ("delay.timer_log_file_size", _BYTES),
    "timerFlushIntervalMs": ("delay.flush_interval", _MS),
    "maxTransferBytesOnMessageInMemory": ("limits.pull_bytes", _BYTES),
    "maxTransferCountOnMessageInMemory": ("limits.pull_messages", _PLAIN),
    "storePathRootDir": ("data_dir", _PLAIN),
    "readOnlyCommitLogStorePaths": ("store.read_only_commit_log_dirs", _joined(",")),
    "flushDiskType": ("store.flush", _FLUSH),
    "syncFlushTimeout": ("store.sync_timeout", _MS),
    "flushIntervalCommitLog": ("store.flush_interval", _MS),
    "flushCommitLogLeastPages": ("store.flush_least_pages", _PLAIN),
    "flushCommitLogThoroughInterval": ("store.flush_thorough_interval", _MS),
    "commitIntervalCommitLog": ("store.commit_interval", _MS),
    "commitCommitLogLeastPages": ("store.commit_least_pages", _PLAIN),
    "commitCommitLogThoroughInterval": ("store.commit_thorough_interval", _MS),
    "flushIntervalConsumeQueue": ("store.consume_queue_flush_interval", _MS),
    "flushConsumeQueueLeastPages": ("store.consume_queue_flush_least_pages", _PLAIN),
    "flushConsumeQueueThoroughInterval": ("store.consume_queue_flush_thorough_interval", _MS),
    "mappedFileSizeCommitLog": ("store.commit_log_file_size", _BYTES),
    "mappedFileSizeConsumeQueue": ("store.consume_queue_entries", _UNITS),
    "enableConsumeQueueExt": ("store.consume_queue_ext", _PLAIN),
    "mappedFileSizeConsumeQueueExt": ("store.consume_queue_ext_file_size", _BYTES),
    "messageIndexEnable": ("store.index", _PLAIN),
    "maxHashSlotNum": ("store.index_slots", _PLAIN),
    "maxIndexNum": ("store.index_entries", _PLAIN),
    "maxMessageSize": ("store.message_size_max", _BYTES),
    "enabledAppendPropCRC": ("store.record_crc", _PLAIN),
    "transientStorePoolEnable": ("store.transient_store_pool", _PLAIN),
    "transientStorePoolSize": ("store.transient_store_pool_size", _PLAIN),
    "fastFailIfNoBufferInStorePool": ("store.fast_fail_if_no_buffer", _PLAIN),
    "osPageCacheBusyTimeOutMills": ("store.os_page_cache_busy_timeout", _MS),
    "warmMapedFileEnable": ("store.warm_mapped_file", _PLAIN),
    "dataReadAheadEnable": ("store.read_ahead", _PLAIN),
    "fileReservedTime": ("store.file_reserved_time", _HOURS),
    "deleteWhen": ("store.delete_when", _PLAIN),
    "cleanResourceInterval": ("store.clean_interval", _MS),
    "deleteCommitLogFilesInterval": ("store.delete_files_interval", _MS),
    "destroyMapedFileIntervalForcibly": ("store.destroy_forcibly_interval", _MS),
    "redeleteHangedFileInterval": ("store.redelete_hanged_interval", _MS),
    "deleteFileBatchMax": ("store.delete_files_batch", _PLAIN),
    "cleanFileForciblyEnable": ("store.clean_file_forcibly", _PLAIN),
    "diskMaxUsedSpaceRatio": ("store.disk_max_used_ratio", _PERCENT),
    "diskSpaceCleanForciblyRatio": ("store.disk_clean_forcibly_ratio", _PERCENT),
    "diskSpaceWarningLevelRatio": ("store.disk_warning_ratio", _PERCENT),
}
"""RocketMQ's name; Reput's key; the form of the value."""
_FACTS_OF_BROKER: Final = {
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceTopicEnable": "true",
    "traceOn": "true",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}
"""What RocketMQ's tools read and no option changes. `mqadmin exportMetrics` shows the last as the number of CPUs."""


class Properties:
    """The configuration of a broker, or of a name server alone, as RocketMQ's tools see it.

    Options that RocketMQ does not have bear Reput's keys; `updateBrokerConfig` takes these for all options.

    Args:
        is_option: whether an option counts; all do for a broker.
    """

    def __init__(self, config: BrokerConfig, is_option: Callable[[str], bool] | None = None) -> None:
        self._config = config
        self._is_option = is_option or (lambda _: True)
        self._names = _OF_BROKER if is_option is None else _OF_ANY
        self._facts = _FACTS_OF_BROKER if is_option is None else {}

    def all(self) -> dict[str, str]:
        """Return every property; secrets are stars."""
        config = self._config
        found = dict(self._facts)
        for name, (key, form) in self._names.items():
            found[name] = form.written(option_value(config, key))
        if self._names is _OF_BROKER:
            own_dirs = config.store.commit_log_dirs or (Path(config.data_dir) / "commitlog",)
            found["storePathCommitLog"] = ",".join(map(str, own_dirs))
            if config.advertise:
                found["brokerIP1"] = config.advertise.rpartition(":")[0]
        else:
            found["kvConfigPath"] = str(Path(config.data_dir) / "config" / "kvConfig.json")
        named = {key for key, _ in self._names.values()}
        for key, field in option_fields(type(config)).items():
            if key not in named and self._is_option(key):
                found[key] = shown(field, option_value(config, key)).strip('"')
        return dict(sorted(found.items()))

    def options(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return texts by option key, as `LiveConfig.set` takes them.

        Raises:
            ConfigError: a name is not that of an option, or a value is not one of RocketMQ's form.
        """
        fields = option_fields(type(self._config))
        options, problems = {}, []
        for name, value in properties.items():
            if name in self._names:
                key, form = self._names[name]
                try:
                    options[key] = form.text(value)
                except ValueError as error:
                    problems.append(ConfigProblem(name, _ORIGIN, str(error)))
            elif name in fields and self._is_option(name):
                options[name] = value
            elif name in self.all():
                problems.append(ConfigProblem(name, _ORIGIN, "cannot be changed here"))
            else:
                problems.append(
                    ConfigProblem(name, _ORIGIN, "unknown key", nearest_key(name, [*self._names, *fields]))
                )
        if problems:
            raise ConfigError(problems)
        return options

    def name_of(self, key: str) -> str:
        """Return RocketMQ's name of an option with Reput's key, or just that key."""
        return next((f"{name} ({key})" for name, (own, _) in self._names.items() if own == key), key)


def written_properties(properties: Mapping[str, str]) -> bytes:
    """Return a line `name=value` for each, as Java reads properties."""
    lines = (f"{name}={value}\n" for name, value in properties.items())
    return "".join(lines).replace("\\", "\\\\").encode()


def read_properties(data: bytes) -> dict[str, str]:
    """Read lines `name=value`; blank lines and comments are skipped.

    Raises:
        ValueError: it is not UTF-8, or a line is no such pair.
    """
    found = {}
    for line in data.decode().splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            name, equals, value = text.partition("=")
            if not equals:
                raise ValueError(f"line {text!r:.80} is not of the form name=value")
            found[name.strip()] = value.strip()
    return found
