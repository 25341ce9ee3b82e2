"""`BrokerConfig`: the whole configuration, and the checks that concern several options.

The top-level options are declared here, the others in `sections.py`; `conf/broker.toml` is made from both.
`load_config` in `loading.py` reads a file, the environment and flags; code builds a configuration directly:

    BrokerConfig(data_dir=path, port=0, store={"flush": "async", "commit_log_file_size": "16MiB"})

A configuration is constant, with one exception: a reload sets live options on the object that every part of the broker
holds. Code that uses a live option reads it each time and keeps no copy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, field_validator

from reput_broker.config import sections
from reput_broker.config.errors import ConfigError, ConfigProblem, problems_of
from reput_broker.config.options import flatten, option_fields
from reput_broker.config.sections import Section, option
from reput_broker.config.value_types import (
    Addresses,
    DataPath,
    Duration,
    HostNames,
    Networks,
    Port,
    PortChoice,
    PortOrOff,
    checked_address,
)
from reput_protocol.errors import InvalidName
from reput_protocol.names import check_topic
from reput_protocol.quantities import format_duration, format_size

DEFAULT_PORT = 10911
_OTHER_PORTS = {"name_port": -1035, "fast_port": -2, "ha_port": 1, "http_port": 2}
"""What each of these is by default, counted from `port`: 9876, 10909, 10912 and 10913 with port 10911."""

FRAME_OVERHEAD_BYTES = 65_536
"""Room for the rest of a frame: 32 KiB of properties, the topic, the fields of record and header."""
_EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")


def _empty_to_none(value: object) -> object:
    return None if value == "" else value


class BrokerConfig(Section):
    """The whole configuration; the constructor raises ConfigError with all mistakes at once."""

    data_dir: DataPath = option(Path("reput-data"), rocketmq="storePathRootDir")
    """The store directory; one broker at a time uses it. Relative to the directory the broker is started in; give an
    absolute path in production."""
    allow_insecure: bool = option(False)
    """Permit listening beyond loopback without access control; every client that can connect may read and write
    everything. Off, so that such a broker is not reachable by accident. Administrative requests are then taken from
    this machine only."""
    host: str = option("127.0.0.1", rocketmq="bindAddress")
    """Address that the broker's ports listen on. Loopback, so that a first start is safe."""
    port: Port = option(DEFAULT_PORT, rocketmq="listenPort")
    """Port for clients; 0 picks a free one. RocketMQ's port, so that its clients need no configuration."""
    name_port: PortChoice = option("auto")
    """The same under the name server's port; auto: port - 1035, which is 9876 with port 10911; off with port 0.
    RocketMQ's clients ask a name server first; this port returns this broker's routes.

    This and the next three ports follow from port, if they are auto. Next to port 10911 each of them must be free;
    next to another, one that is taken is left out and logged (port_taken; http_port: a free one), unless copies need
    it. Brokers on one machine whose ports differ by 10 share none."""
    fast_port: PortChoice = option("auto")
    """The same under port - 2 (RocketMQ: fastListenPort, the "VIP channel"); auto: port - 2; off with port 0. Needed
    only by RocketMQ's Java clients with vipChannelEnabled, and by an Apache slave of this broker."""
    ha_port: PortChoice = option("auto", rocketmq="haListenPort")
    """Port that slaves connect to for the log; auto: port + 1; off with port 0. 0 picks a free one."""
    http_host: str = option("127.0.0.1")
    """Address that metrics, health and status are served on. Separate from host: clients may come from outside while
    the metrics stay inside."""
    http_port: PortChoice = option("auto")
    """Port of metrics, health and status; auto: port + 2, a free one with port 0 (embedded: off). Different from
    RocketMQ's own 5557, so that both fit on one host."""
    proxy_port: PortOrOff = option("off")
    """Port, at host, of a proxy for RocketMQ 5's gRPC clients; off; 0 picks a free one. RocketMQ's is 8081. The proxy
    is a separate process, which the broker restarts when it ends, and stops when it stops itself. Unless tls.mode is
    off, its clients use TLS; with access.enabled they sign as users. It needs the extra grpc: pip install
    'reput[grpc]'."""
    proxy_advertise: Annotated[str | None, BeforeValidator(_empty_to_none)] = option(None)
    """Host:port that the proxy of proxy_port names in its routes; "" names the address that the client has dialled, so
    that port mappings and load balancers work. Set it if clients must continue at another address."""
    http_allowed_hosts: HostNames = option(())
    """Further host names that browsers may use; addresses, names without a dot and advertise always pass. Other names
    are rejected with 421, so that no web page can read the broker under another name that resolves to this machine.
    Prometheus, curl and probes may use any name. Example: ["metrics.example.com"]."""
    proxy_protocol_from: Networks = option(())
    """Addresses or networks of proxies in front of port, name_port and fast_port: each of their connections begins with
    the header of the PROXY protocol, version 1 or 2, and the address in it is used in logs, metrics and born hosts.
    From any other address such a header is rejected, so that no client can choose its address. Example: ["10.0.0.7",
    "10.1.0.0/16"]."""
    advertise: Annotated[str | None, BeforeValidator(_empty_to_none)] = option(None)
    """Host:port that routes name; "" names the address that the client connected to. Needed if RocketMQ's clients
    connect to an address that the broker cannot find out, such as a published container port, and with name servers on
    other machines unless host is an address that clients reach. Reput's own clients keep the address that they were
    given."""
    cluster: str = option("DefaultCluster", rocketmq="brokerClusterName")
    """Name of the cluster in routes. RocketMQ's default, so that its tools find the cluster."""
    broker_name: str = option("broker-a", rocketmq="brokerName")
    """Name of this broker in routes. RocketMQ's usual first name; clients keep offsets by it, so keep it for the life
    of a store. A master and its slaves have the same one."""
    broker_id: int = option(0, rocketmq="brokerId", ge=0, le=(1 << 31) - 1)
    """0 for a master; 1 and above for its slaves, each its own. RocketMQ's clients write to id 0."""
    name_servers: Addresses = option((), rocketmq="namesrvAddr")
    """Name servers that this broker registers with: a list, or "names1:9876;names2:9876".
    Needed where topics are on several brokers, or a slave is to find its master. Empty: clients ask this broker
    alone."""
    register_interval: Duration = option(30.0, rocketmq="registerNameServerPeriod", live=True, ge=0.1, le=60.0)
    """Interval at which the broker registers with its name servers. In between it sends a heartbeat every 5 s; a name
    server drops it when its connection ends, or after 30 s of silence."""
    shutdown_grace: Duration = option(20.0, live=True, ge=0.0, le=3600.0)
    """Time that running requests get at shutdown. Longer than any ordinary request; keep the supervisor's kill timeout
    10 s above it."""
    # Each configuration has its own sections, because a reload sets their live options.
    access: sections.AccessConfig = Field(default_factory=sections.AccessConfig)
    store: sections.StoreConfig = Field(default_factory=sections.StoreConfig)
    ha: sections.HAConfig = Field(default_factory=sections.HAConfig)
    election: sections.ElectionConfig = Field(default_factory=sections.ElectionConfig)
    topics: sections.TopicsConfig = Field(default_factory=sections.TopicsConfig)
    limits: sections.LimitsConfig = Field(default_factory=sections.LimitsConfig)
    log: sections.LogConfig = Field(default_factory=sections.LogConfig)
    metrics: sections.MetricsConfig = Field(default_factory=sections.MetricsConfig)
    tracing: sections.TracingConfig = Field(default_factory=sections.TracingConfig)
    offsets: sections.OffsetsConfig = Field(default_factory=sections.OffsetsConfig)
    dedup: sections.DedupConfig = Field(default_factory=sections.DedupConfig)
    groups: sections.GroupsConfig = Field(default_factory=sections.GroupsConfig)
    filters: sections.FiltersConfig = Field(default_factory=sections.FiltersConfig)
    sink: sections.SinkConfig = Field(default_factory=sections.SinkConfig)
    long_polling: sections.LongPollingConfig = Field(default_factory=sections.LongPollingConfig)
    delay: sections.DelayConfig = Field(default_factory=sections.DelayConfig)
    transactions: sections.TransactionsConfig = Field(default_factory=sections.TransactionsConfig)
    replies: sections.RepliesConfig = Field(default_factory=sections.RepliesConfig)
    console: sections.ConsoleConfig = Field(default_factory=sections.ConsoleConfig)
    tls: sections.TlsConfig = Field(default_factory=sections.TlsConfig)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _path: Path | None = PrivateAttr(default=None)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, {}, option_fields(type(self)))) from None
        problems = contradictions(self)
        if problems:
            raise ConfigError(problems)
        self._origins.update(dict.fromkeys(flatten(values), "code"))

    @field_validator("host", "http_host")
    @classmethod
    def _some_address(cls, value: str) -> str:
        if not value:
            raise ValueError('an address is needed; "127.0.0.1" listens on loopback only')
        return value

    @field_validator("advertise", "proxy_advertise")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return checked_address(value)

    @field_validator("cluster", "broker_name")
    @classmethod
    def _legal_name(cls, value: str) -> str:
        # Both are also names of topics (RocketMQ: TopicConfigManager), so topic rules apply.
        try:
            return check_topic(value)
        except InvalidName as error:
            raise ValueError(str(error).replace("topic name", "name", 1)) from None

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each option that is not at its default: a file, a variable, a flag, `code`."""
        return self._origins

    @property
    def path(self) -> Path | None:
        """The file that this configuration was read from, if any."""
        return self._path

    def note_origins(self, origins: Mapping[str, str], path: Path | None) -> None:
        """Set the origins of the values."""
        self._origins.clear()
        self._origins.update(origins)
        self._path = path

    @property
    def is_reachable(self) -> bool:
        """Whether other machines can reach a port of this broker."""
        return not (is_loopback(self.host) and is_loopback(self.http_host))

    def may_miss(self, option: str) -> bool:
        """Tell whether the broker starts without this port of its own choice if another process has it.

        Next to port 10911 the others are those that every client expects, and copies need `ha_port`.
        """
        copies = self.election.is_on or self.ha.role == "SYNC_MASTER" or self.ha.in_sync_replicas > 1
        needed = option == "ha_port" and copies
        return getattr(self, option) == "auto" and self.port != DEFAULT_PORT and not needed

    def port_to_open(self, option: str) -> int | None:
        """Return the port of a listener besides that of `port` (0 = any free one), or None for no such listener.

        A port that follows from `port` makes way for one that another option names, except next to port 10911.

        Args:
            option: `name_port`, `fast_port`, `ha_port` or `http_port`.
        """
        chosen = getattr(self, option)
        if chosen != "auto":
            return chosen if isinstance(chosen, int) else None
        number = self.port + _OTHER_PORTS[option]
        is_named = self.port != DEFAULT_PORT and number in (getattr(self, other) for other in _OTHER_PORTS)
        return number if self.port and 0 < number < 1 << 16 and not is_named else None

    def http_port_to_open(self, *, embedded: bool) -> int | None:
        """Return the port of the HTTP listener (0 = any free one), or None for no such listener."""
        port = self.port_to_open("http_port")
        if self.http_port != "auto":
            return port
        return None if embedded else port or 0


def is_loopback(host: str) -> bool:
    """Tell whether `host` is a loopback address or `localhost`; other names count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Listener(NamedTuple):
    """The address of a listener, and the option that sets it."""

    option: str
    host: str
    port: int
    is_auto: bool

    def collides_with(self, other: _Listener) -> bool:
        """Tell whether both cannot be open at once; port 0 never collides."""
        same_host = self.host == other.host or self.host in _EVERY_ADDRESS or other.host in _EVERY_ADDRESS
        return bool(self.port) and self.port == other.port and same_host


def contradictions(config: BrokerConfig) -> list[ConfigProblem]:
    """Return the combinations of valid options that cannot work together."""
    return [
        *_open_to_all(config),
        *_shared_ports(config),
        *_messages_beyond_frames(config),
        *_roles(config),
        *_unreachable_address(config),
        *_election(config),
        *_console(config),
        *_tls(config),
        *_proxy(config),
    ]


def _open_to_all(config: BrokerConfig) -> list[ConfigProblem]:
    """Addresses at which other machines could do everything."""
    access = config.access
    problems = []
    if access.broker_user and not access.broker_secret:
        problems.append(ConfigProblem("access.broker_secret", "code", "it belongs to access.broker_user, which is set"))
    if access.enabled or config.allow_insecure:
        return problems
    for key in ("host", "http_host"):
        address = getattr(config, key)
        if not is_loopback(address):
            text = (
                f"{address} can be reached from other machines, and access control is off; set access.enabled = true "
                "(docs/security.md), or allow_insecure = true if the network is trusted, or use 127.0.0.1"
            )
            problems.append(ConfigProblem(key, "code", text))
    return problems


def _shared_ports(config: BrokerConfig) -> list[ConfigProblem]:
    problems = []
    for one, other in combinations(_listeners(config), 2):
        if one.collides_with(other):
            chosen, taken_by = (one, other) if other.is_auto else (other, one)
            auto = " (auto)" if taken_by.is_auto else ""
            text = (
                f"port {chosen.port} is that of {taken_by.option}{auto} already, and each needs its own; "
                f"choose another{'' if chosen.option == 'port' else ', 0 for a free one, or off for none'}"
            )
            problems.append(ConfigProblem(chosen.option, "code", text))
    return problems


def _listeners(config: BrokerConfig) -> list[_Listener]:
    found = [_Listener("port", config.host, config.port, is_auto=False)]
    for key in _OTHER_PORTS:
        port = config.port_to_open(key)
        if port is not None:
            host = config.http_host if key == "http_port" else config.host
            found.append(_Listener(key, host, port, getattr(config, key) == "auto"))
    if isinstance(config.proxy_port, int):
        found.append(_Listener("proxy_port", config.host, config.proxy_port, is_auto=False))
    return found


def _messages_beyond_frames(config: BrokerConfig) -> list[ConfigProblem]:
    """A frame above its limit ends the connection before the sender learns why."""
    frame_size, body_size = config.limits.frame_size, config.store.message_size_max
    least = body_size + FRAME_OVERHEAD_BYTES
    if frame_size >= least:
        return []
    text = (
        f"{format_size(frame_size)} are too few for a message of store.message_size_max "
        f"({format_size(body_size)}) with its header and properties; raise it to {format_size(least)} or more, "
        "or lower store.message_size_max"
    )
    return [ConfigProblem("limits.frame_size", "code", text)]


def _roles(config: BrokerConfig) -> list[ConfigProblem]:
    """What the role of this broker contradicts."""
    ha, found = config.ha, []
    is_slave = ha.role == "SLAVE"
    if is_slave and config.broker_id == 0:
        found.append(("broker_id", "0 is the id of a master and ha.role is SLAVE; give this slave 1 or above"))
    if not is_slave and config.broker_id and not config.election.is_on:
        text = f"{config.broker_id} is the id of a slave and ha.role is {ha.role}; a master has 0 without an election"
        found.append(("broker_id", text))
    if is_slave and not ha.master and not config.name_servers:
        text = "a slave needs to find its master: name it, or set name_servers, which have its address"
        found.append(("ha.master", text))
    if not is_slave and (ha.master or ha.master_ha_address):
        key = "ha.master" if ha.master else "ha.master_ha_address"
        text = f'a broker with ha.role = "{ha.role}" follows no master; set ha.role = "SLAVE" or remove this'
        found.append((key, text))
    if not is_slave and config.port_to_open("ha_port") is None:
        if ha.in_sync_replicas > 1:
            text = (
                f"{ha.in_sync_replicas} copies cannot be reached: ha_port is off, so that no slave can connect; "
                "set ha_port, or 1 here"
            )
            found.append(("ha.in_sync_replicas", text))
        elif ha.role == "SYNC_MASTER":
            text = "no slave can connect to a SYNC_MASTER while ha_port is off; set ha_port, or ASYNC_MASTER here"
            found.append(("ha.role", text))
    if ha.housekeeping_interval <= ha.send_heartbeat_interval:
        text = (
            f"{format_duration(ha.housekeeping_interval)} would end connections between two heartbeats; choose "
            f"more than ha.send_heartbeat_interval ({format_duration(ha.send_heartbeat_interval)})"
        )
        found.append(("ha.housekeeping_interval", text))
    return [ConfigProblem(key, "code", text) for key, text in found]


def _console(config: BrokerConfig) -> list[ConfigProblem]:
    if config.console.read_without_login or config.console.token:
        return []
    text = "false, and console.token is empty, so that no login is possible; set console.token, or true here"
    return [ConfigProblem("console.read_without_login", "code", text)]


def _tls(config: BrokerConfig) -> list[ConfigProblem]:
    """What TLS lacks."""
    tls, found = config.tls, []
    if tls.is_on and not tls.cert:
        key, value = ("mode", tls.mode) if tls.mode != "off" else ("http_mode", tls.http_mode)
        found.append(("tls.cert", f'tls.{key} = "{value}" needs the certificate of this broker; name its file'))
    if tls.key and not tls.cert:
        found.append(("tls.key", "it is the key of tls.cert, which is not set; name both"))
    if tls.client_cert != "none":
        if not tls.ca:
            text = f'tls.client_cert = "{tls.client_cert}" needs the authorities that sign clients; name their file'
            found.append(("tls.ca", text))
        if tls.mode == "off":
            text = 'no client shows a certificate while tls.mode is "off"; set "required" or "permissive" there'
            found.append(("tls.client_cert", text))
    if tls.connect and not (tls.ca or tls.server_name) and config.access.credentials() is None:
        found.append(
            (
                "tls.connect",
                "any host with a certificate of a public authority could be a master or name server: set tls.ca to the "
                "authority of your brokers, or tls.server_name to the name in their certificates, or give this broker "
                "a user (access.broker_user), to which its master then proves itself",
            )
        )
    if tls.connect and tls.mode == "off" and config.proxy_port != "off":
        text = (
            'the proxy of proxy_port would connect with TLS to this broker, whose tls.mode is "off"; set "permissive" '
            'or "required" there, or set tls.connect to false, or run reput proxy on its own and proxy_port = "off"'
        )
        found.append(("tls.connect", text))
    if tls.server_name and not tls.connect:
        found.append(("tls.server_name", "it is for tls.connect, which is false; set that too, or remove this"))
    return [ConfigProblem(key, "code", text) for key, text in found]


def _unreachable_address(config: BrokerConfig) -> list[ConfigProblem]:
    """Name servers would give clients an address at which they do not reach this broker."""
    if not config.name_servers or config.advertise:
        return []
    if config.host in _EVERY_ADDRESS:
        reason = f"host {config.host} is no address that clients can connect to"
    elif not is_loopback(config.host):
        return []
    else:
        far = [name for name in config.name_servers if not is_loopback(name.rpartition(":")[0])]
        if not far:
            return []
        reason = f"host {config.host} can be reached on this machine only, and name server {far[0]} is elsewhere"
    text = f"{reason}; set advertise to the host:port under which clients reach this broker"
    return [ConfigProblem("advertise", "code", text)]


def _proxy(config: BrokerConfig) -> list[ConfigProblem]:
    """An address of a proxy that does not run."""
    if not config.proxy_advertise or config.proxy_port != "off":
        return []
    text = "it is for the proxy of proxy_port, which is off; set that too, or remove this"
    return [ConfigProblem("proxy_advertise", "code", text)]


def _election(config: BrokerConfig) -> list[ConfigProblem]:
    """What an election contradicts."""
    election, found = config.election, []
    if not election.is_on:
        return []
    if election.etcd and election.kubernetes_namespace:
        text = "election.etcd is set too, and one engine elects; remove one of them"
        found.append(("election.kubernetes_namespace", text))
    if config.ha.role == "SLAVE":
        text = "the election decides who is a slave; choose ASYNC_MASTER or SYNC_MASTER, which is for when it is master"
        found.append(("ha.role", text))
    if config.port_to_open("ha_port") is None:
        text = "the other replicas copy from this port when this one is the master; set it"
        found.append(("ha_port", text))
    if config.advertise is None and config.host.strip("[]") in ("0.0.0.0", "::"):
        text = f"the other replicas cannot connect to {config.host}; name the address at which they reach this broker"
        found.append(("advertise", text))
    if election.in_sync_timeout <= config.ha.send_heartbeat_interval:
        text = (
            f"{format_duration(election.in_sync_timeout)} would remove replicas between two heartbeats; choose more "
            f"than ha.send_heartbeat_interval ({format_duration(config.ha.send_heartbeat_interval)})"
        )
        found.append(("election.in_sync_timeout", text))
    for key, needs in (("etcd_user", "etcd_password_file"), ("etcd_cert", "etcd_key")):
        for one, other in ((key, needs), (needs, key)):
            if getattr(election, one) and not getattr(election, other):
                found.append((f"election.{other}", f"it belongs to election.{one}, which is set"))
    return [ConfigProblem(key, "code", text) for key, text in found]
