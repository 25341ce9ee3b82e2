"""Each alert's real cause. A scene causes it on entry and ends it on exit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from ops.site import Site, repeated, scraped
from reput_client import TransactionState
from reput_client.blocking import Admin, Consumer, Message, Producer, TransactionProducer
from reput_protocol.codes import PullSysFlag, RequestCode
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.errors import ReputError
from support.group_client import GroupClient
from support.raw_client import RawClient

Alert: TypeAlias = tuple[str, str, str]
"""Name, broker, group; no group: ""."""


class Scene(NamedTuple):
    """Alerts and what causes them."""

    cause: str
    alerts: tuple[Alert, ...]
    play: Callable[[Site], AbstractContextManager[None]]
    deadline_s: float = 60.0


@contextmanager
def no_names(site: Site) -> Iterator[None]:
    yield  # the slave was started alone
    site.start_name_server()
    site.master.start()
    site.master.wait_ready()


@contextmanager
def slave_killed(site: Site) -> Iterator[None]:
    site.slave.kill()
    yield
    site.slave.start()
    site.slave.wait_ready()


@contextmanager
def slave_stopped(site: Site) -> Iterator[None]:
    os.kill(site.slave.pid, signal.SIGSTOP)
    with Producer(site.master.address) as producer:
        producer.send(Message("replicated", b"x"))
    yield
    os.kill(site.slave.pid, signal.SIGCONT)


@contextmanager
def master_stopped(site: Site) -> Iterator[None]:
    os.kill(site.master.pid, signal.SIGSTOP)
    yield
    os.kill(site.master.pid, signal.SIGCONT)


@contextmanager
def syncs_fail(site: Site) -> Iterator[None]:
    with Producer(site.faulty.address, timeout_s=5.0) as producer:
        producer.send(Message("orders", b"creates the topic"))
        site.sync_fault.touch()
        with suppress(ReputError):
            producer.send(Message("orders", b"x"))
    yield
    site.sync_fault.unlink()
    site.faulty.kill()
    site.faulty.start()
    site.faulty.wait_ready()


@contextmanager
def delayed_record_damaged(site: Site) -> Iterator[None]:
    with Producer(site.faulty.address) as producer:
        receipt = producer.send(Message("reminders", b"never", delay_s=5.0))
    log = next((site.faulty.data_dir / "commitlog").glob("0*"))
    with log.open("r+b") as file:
        file.seek(receipt.physical_offset + 4)  # its magic number
        file.write(bytes(4))
    yield


@contextmanager
def disk_filling(site: Site) -> Iterator[None]:
    with (site.disk / "filler").open("wb") as file:

        def fill() -> None:
            file.write(bytes(1 << 20))
            file.flush()

        with repeated(fill, 0.25):
            yield
        file.truncate(0)
    os.unlink(file.name)


@contextmanager
def disk_full(site: Site) -> Iterator[None]:
    with Producer(site.full.address) as producer:
        # Not before the broker has noticed that the disk is full, which it looks at every ten seconds.
        producer.send(Message("reminders", b"late", delay_s=15.0))
    with (site.disk / "filler").open("wb") as file:
        while (room := os.statvfs(site.disk)).f_bavail > 0.06 * room.f_blocks:
            file.write(bytes(1 << 20))
            file.flush()
    yield
    os.unlink(file.name)


@contextmanager
def old_message(site: Site) -> Iterator[None]:
    yield  # it was stored an hour ago, by the broker's clock
    with Consumer(site.main.address, group="late", topic="old") as consumer:
        while (message := consumer.receive(10.0)) is None or message.body != b"an hour old":
            pass


@contextmanager
def members_differ(site: Site) -> Iterator[None]:
    one, other = (GroupClient(site.main.address, name, "mixed") for name in ("one", "other"))
    one.heartbeat("orders")
    scraped()
    other.heartbeat(expressions={"orders": "paid"})
    yield
    for member in (one, other):
        member.close()


@contextmanager
def dead_letter(site: Site) -> Iterator[None]:
    with Consumer(site.main.address, group="letters", topic="orders", start="latest") as consumer:
        message = consumer.receive(20.0)
        assert message is not None
    scraped()
    client = GroupClient(site.main.address, "letters-1", "letters")
    answer, _ = client.ask(SendBackHeader(message.physical_offset, "letters", -1))
    assert answer.code == 0, answer
    client.close()
    yield


@contextmanager
def transactions_undecided(site: Site) -> Iterator[None]:
    state = TransactionState.UNKNOWN
    with TransactionProducer(site.main.address, group="payments", check=lambda _: state) as producer:
        for number in range(1001):
            producer.send_in_transaction(Message("payments", b"%d" % number), lambda _: TransactionState.UNKNOWN)
        yield
        state = TransactionState.ROLLBACK
        time.sleep(10.0)


@contextmanager
def group_falls_behind(site: Site) -> Iterator[None]:
    with Producer(site.main.address) as producer:
        for queue_id in range(2):
            producer.send_batch([Message("busy", b"x") for _ in range(5500)], queue_id=queue_id)
        group = GroupClient(site.main.address, "slow-1", "slow")
        group.heartbeat("busy")
        offsets = count()

        def send_and_commit() -> None:
            producer.send_batch([Message("busy", b"x") for _ in range(50)])
            offset = next(offsets)
            for queue_id in range(2):
                assert group.commit("busy", offset, queue_id).code == 0

        with repeated(send_and_commit, 0.2):
            yield
        group.close()


@contextmanager
def member_hangs(site: Site) -> Iterator[None]:
    with (
        Producer(site.main.address) as producer,
        Consumer(site.main.address, group="hanging", topic="hard", start="earliest") as consumer,
    ):
        producer.send(Message("hard", b"x"))
        assert consumer.receive(20.0) is not None
        yield  # it is not finished


@contextmanager
def schedule_without_topic(site: Site) -> Iterator[None]:
    with Admin(site.main.address) as admin:
        admin.create_topic("reports")
        admin.create_schedule("often", "@every 1s", Message("reports", b"x"))
        admin.delete_topic("reports")
        yield
        admin.delete_schedule("often")


@contextmanager
def client_reads_slowly(site: Site) -> Iterator[None]:
    with Producer(site.main.address) as producer:
        for _ in range(40):
            producer.send(Message("large", bytes(100_000)), queue_id=0)
    client = RawClient(site.main.address)
    header = PullMessageHeader("slow-reader", "large", 0, 0, 32, int(PullSysFlag.SUBSCRIPTION), 0, 0, "*", 0)
    ext = header.to_ext(client.header_type)

    def pull() -> None:
        for _ in range(20):
            client.send(RequestCode.PULL_MESSAGE, ext)
        for _ in range(10):
            client.receive()

    with client, repeated(pull, 0.5):
        yield


@contextmanager
def no_processor_time(site: Site) -> Iterator[None]:
    def stall() -> None:
        os.kill(site.main.pid, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(site.main.pid, signal.SIGCONT)

    with repeated(stall, 0.2):
        yield


@contextmanager
def draining(site: Site) -> Iterator[None]:
    with Admin(site.main.address) as admin:
        admin.set_intake("draining")
        yield
        admin.set_intake("open")


@contextmanager
def wrong_configuration(site: Site) -> Iterator[None]:
    good = site.config_file.read_text()
    site.config_file.write_text("[topics]\ndefault_queues = 'many'\n")
    os.kill(site.main.pid, signal.SIGHUP)
    yield
    site.config_file.write_text(good)
    os.kill(site.main.pid, signal.SIGHUP)


@contextmanager
def certificate_ends(site: Site) -> Iterator[None]:
    site.write_certificate(days=7)
    yield
    site.write_certificate(days=90)


@contextmanager
def proxy_ends(site: Site) -> Iterator[None]:
    def kill() -> None:
        with Admin(site.main.address) as admin:
            pid = admin.describe_broker()["proxy"]["pid"]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    with repeated(kill, 0.2):
        yield


@contextmanager
def killed(site: Site) -> Iterator[None]:
    site.main.kill()
    yield
    site.main.start()
    site.main.wait_ready()


@contextmanager
def journal_damaged(site: Site) -> Iterator[None]:
    site.main.kill()
    journal = site.main.data_dir / "config" / "consumerOffset.journal"
    with journal.open("r+b") as file:
        file.seek(60)
        byte = file.read(1)
        file.seek(60)
        file.write(bytes([byte[0] ^ 1]))
    site.main.start()
    site.main.wait_ready()
    yield
    site.main.terminate()
    site.main.start()
    site.main.wait_ready()


OF_THE_PAIR: Final = (
    Scene(
        "a slave without name server and master", (("NotRegistered", "slave", ""), ("NoMaster", "slave", "")), no_names
    ),
    Scene("the slave is killed", (("ReplicaMissing", "master", ""), ("BrokerDown", "slave", "")), slave_killed),
    Scene("the slave is stopped (SIGSTOP)", (("ReplicationLag", "master", ""),), slave_stopped),
)
WHILE_MASTER_STOPS: Final = Scene(
    "the master is stopped (SIGSTOP)",
    (("ReplicaDisconnected", "slave", ""), ("ReplicaTablesOld", "slave", "")),
    master_stopped,
    180.0,
)
OF_OTHERS: Final = (
    Scene("a message of an hour ago, a group without members", (("GroupEmpty", "main", "late"),), old_message),
    Scene("fsync fails", (("FlushError", "faulty", ""), ("StoreReadOnly", "faulty", "")), syncs_fail),
    Scene("the record of a delayed message is damaged", (("DelayLost", "faulty", ""),), delayed_record_damaged),
    Scene("the disk fills", (("DiskFilling", "full", ""),), disk_filling),
    Scene("the disk is full", (("DiskRefusing", "full", ""), ("DelayLate", "full", "")), disk_full),
    Scene("members subscribe to different tags", (("GroupConflicting", "main", "mixed"),), members_differ),
    Scene("a consumer gives up a message", (("DeadLetters", "main", "letters"),), dead_letter),
    Scene("1001 transactions are not ended", (("TransactionsStuck", "main", ""),), transactions_undecided, 90.0),
    Scene("a group falls behind", (("GroupBehind", "main", "slow"),), group_falls_behind),
    Scene("a member hangs in a message", (("GroupStuck", "main", "hanging"),), member_hangs),
    Scene("the topic of a schedule is deleted", (("ScheduleFailing", "main", ""),), schedule_without_topic),
    Scene("a client reads its answers slowly", (("Backpressure", "main", ""),), client_reads_slowly),
    Scene("the broker gets no processor time", (("LoopSlow", "main", ""),), no_processor_time),
    Scene("the operator drains the broker", (("BrokerNotReady", "main", ""),), draining),
    Scene("a reload with an error", (("ReloadFailed", "main", ""),), wrong_configuration),
    Scene("the certificate ends soon", (("CertificateEnds", "main", ""),), certificate_ends),
    Scene("the proxy of the broker ends again and again", (("ProxyDown", "main", ""),), proxy_ends),
    Scene("the broker is killed", (("BrokerDown", "main", ""),), killed),
    Scene("the journal of offsets is damaged", (("RecoveryDamage", "main", ""),), journal_damaged),
)
