"""The elector of a broker whose configuration names an engine."""

from __future__ import annotations

from pathlib import Path

from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.election.engine import Engine, Leader, Terms
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.epochs import EpochFile
from reput_broker.put.put_lock import boot_time
from reput_broker.store.base.errors import directory_refusals
from reput_broker.tenure import Role

NOT_OPEN = "this broker is starting: its log is not open yet"
"""A broker that recovers its log for minutes must not be the master meanwhile."""


def make_elector(config: BrokerConfig, address: str, ha_address: str) -> Elector:
    """Return the elector of this broker. Blocks.

    Args:
        address: where clients and other members reach this broker, `host:port`.
        ha_address: where other members copy its log, `host:port`.

    Raises:
        MemberFileWrong: the data directory is that of another member.
        ConfigError: httpx is not installed.
        EngineUnavailable: Kubernetes elects, and this process does not run in a pod.
        OSError, ssl.SSLError: a file of the configuration cannot be read.
    """
    election = config.election
    epochs = config.data_dir / "epochFileCheckpoint"

    def log_epoch() -> int:
        file = EpochFile(epochs)
        file.load()
        return file.last

    try:
        engine = _make_engine(config)
    except ModuleNotFoundError as missing:
        if missing.name != "httpx":
            raise
        key = "election.etcd" if config.election.etcd else "election.kubernetes_namespace"
        text = "needs httpx, which is not installed (the extra `etcd` of reput brings it): pip install httpx"
        raise ConfigError([ConfigProblem(key, config.origins.get(key, "code"), text)]) from missing
    with directory_refusals(config.data_dir):
        file = MemberFile(
            config.data_dir / "config" / "election.json",
            cluster=config.cluster,
            broker_name=config.broker_name,
            member=config.broker_id,
        )
    return Elector(
        engine,
        Leader(config.broker_id, address, ha_address),
        Role(config.ha.role),
        file,
        Terms(election.lease, election.first_master, election.in_sync_timeout, config.ha.max_gap_not_in_sync),
        log_epoch,
    )


def _make_engine(config: BrokerConfig) -> Engine:
    # Imported here, because httpx takes a tenth of a second that a broker without an election need not wait.
    election = config.election
    if election.kubernetes_namespace:
        from reput_broker.ha.election.kubernetes import KubernetesEngine

        return KubernetesEngine(
            election.kubernetes_namespace,
            cluster=config.cluster,
            broker_name=config.broker_name,
            lease_s=election.lease,
            clock=boot_time,
        )
    from reput_broker.ha.election.endpoints import tls_context
    from reput_broker.ha.election.etcd import EtcdEngine

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    tls = None
    if any(address.startswith("https:") for address in election.etcd):
        tls = tls_context(path(election.etcd_ca), path(election.etcd_cert), path(election.etcd_key))
    password = ""
    if election.etcd_password_file:
        password = Path(election.etcd_password_file).read_text().strip()
    return EtcdEngine(
        election.etcd,
        cluster=config.cluster,
        broker_name=config.broker_name,
        lease_s=election.lease,
        user=election.etcd_user,
        password=password,
        tls=tls,
    )
