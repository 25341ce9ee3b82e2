"""Every command of RocketMQ's `mqadmin`: how it is run, and what it is expected to do with this broker.

`python tests/conformance/mqadmin.py` runs all of them against RocketMQ's own broker, keeps what they print in
`tests/golden/mqadmin.json`, without times, ids and addresses, and writes the table of docs/compatibility.md. The test
runs them against this broker and compares: one JVM for all.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.path.remove(str(Path(__file__).resolve().parent))

from conformance import apache
from conformance.java_cluster import JavaCluster
from support.broker_process import BrokerProcess, free_port
from support.waiting import wait_until

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "mqadmin.json"
PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN: Final = "<!-- made by `python tests/conformance/mqadmin.py` -->\n\n"
END: Final = "\n<!-- end of the commands of mqadmin -->\n"
_TOPICS = [{"topicName": f"listed-{number}", "readQueueNums": 2, "writeQueueNums": 2} for number in (1, 2)]
_GROUPS = [{"groupName": "listed-group"}]
_SETTLED_S = 60
_ADMIN_SECRET: Final = "secret-of-the-administrator"


class Outcome(StrEnum):
    """What a command does with this broker."""

    WORKS = "works"
    REJECTED = "rejected"
    LOCAL = "needs no broker"


class Form(StrEnum):
    """What of a command's output is compared with what it prints of RocketMQ's broker."""

    SAME = "every line"
    WORDS = "every line, without numbers"
    NAMES = "no name that RocketMQ does not have; keys of Reput's own have a dot or an underscore"
    ALL_NAMES = "every name before a colon, and there may be more"
    RUNS = "only that it does not fail"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, its arguments in each run, and the expectation; `why` says why it is rejected, or what differs."""

    runs: tuple[str, ...]
    outcome: Outcome = Outcome.WORKS
    why: str = ""
    form: Form = Form.SAME
    lacks: frozenset[str] = frozenset()
    """Names that RocketMQ's broker has more."""
    limit_ms: int = 0
    """When a command that repeats for ever is interrupted."""


def _works(*runs: str, form: Form = Form.SAME, why: str = "", lacks: str = "", limit_ms: int = 0) -> Command:
    return Command(runs, Outcome.WORKS, why, form, frozenset(lacks.split()), limit_ms)


def _rejected(why: str, *runs: str) -> Command:
    return Command(runs, Outcome.REJECTED, why)


def _local(why: str) -> Command:
    return Command((), Outcome.LOCAL, why)


_NO_CONTROLLER = "no controller: etcd or Kubernetes elects; a RocketMQ broker without one rejects it, too"
_NO_CONTAINER = "no broker containers; a RocketMQ broker rejects it, too"

# In an order in which each finds what it needs.
COMMANDS: Final[Mapping[str, Command]] = {
    "updateTopic": _works(
        "-c {cluster} -t orders -r 1 -w 1", "-b {broker} -t second -r 2 -w 2 -a +message.type=NORMAL"
    ),
    "updateTopicList": _works("-b {broker} -f {files}/topics.json"),
    "updateTopicPerm": _works("-c {cluster} -t second -p 4", "-b {broker} -t second -p 6"),
    "updateSubGroup": _works("-c {cluster} -g billing -r 5"),
    "updateSubGroupList": _works("-b {broker} -f {files}/groups.json"),
    "setConsumeMode": _works("-b {broker} -t second -g billing -m POP -q 2"),
    "sendMessage": _works("-t orders -p hello -k k1 -c t1 -b broker-a -i 0"),
    "topicRoute": _works("-t orders", "-t orders -l"),
    "topicStatus": _works("-t orders", form=Form.WORDS),
    "topicClusterList": _works("-t orders"),
    "topicList": _works("", "-c", why="the system's topics differ"),
    "clusterList": _works("", "-m", form=Form.WORDS, why="the version is Reput's"),
    "brokerStatus": _works(
        "-b {broker}",
        form=Form.ALL_NAMES,
        why="capacities are how many requests memory allows to wait, because there are no thread pools",
    ),
    "brokerConsumeStats": _works("-b {broker}"),
    "producerConnection": _works("-g makers -t orders"),
    "consumerConnection": _works("-g readers"),
    "consumerProgress": _works("-g readers", form=Form.WORDS, why="retry topics are listed from the start"),
    "consumerStatus": _works("-g readers"),
    "producer": _works("-b {broker}", form=Form.WORDS),
    "queryMsgById": _works(
        "-i {offsetId} -t orders", "-i {offsetId} -t orders -g readers -d {clientId}", form=Form.WORDS
    ),
    "queryMsgByKey": _works("-t orders -k key"),
    "queryMsgByUniqueKey": _works("-i {messageId} -t orders", form=Form.WORDS),
    "queryMsgByOffset": _works("-t orders -b broker-a -i {queueId} -o {queueOffset}"),
    "queryMsgTraceById": _works("-i {messageId}", form=Form.WORDS),
    "printMsg": _works("-t orders -d true", form=Form.WORDS),
    "printMsgByQueue": _works("-t orders -a broker-a -i 0 -p true -d true -f true", form=Form.WORDS),
    "consumeMessage": _works("-t orders -b broker-a -i 0 -o 0 -c 1 -g console", form=Form.WORDS),
    "sendMsgStatus": _works("-b broker-a -c 2 -s 20", form=Form.WORDS),
    "checkMsgSendRT": _works("-t orders -a 2 -s 20", form=Form.WORDS),
    "clusterRT": _works("-a 2 -s 20 -i 60 -c {cluster}", form=Form.WORDS, limit_ms=1500),
    "cloneGroupOffset": _works("-s readers -d billing -t orders -o false"),
    "resetOffsetByTime": _works("-g readers -t orders -s now", form=Form.WORDS),
    "skipAccumulatedMessage": _works("-g readers -t orders", form=Form.WORDS),
    "getConsumerConfig": _works("-g billing"),
    "queryCq": _works(
        "-t orders -q 0 -i 0 -c 2 -b {broker}", "-t orders -q 0 -i 0 -c 1 -b {broker} -g readers", form=Form.WORDS
    ),
    "allocateMQ": _works("-t orders -i 10.0.0.1,10.0.0.2"),
    "statsAll": _works("-t orders -a", form=Form.WORDS),
    "updateKvConfig": _works("-s space -k key -v value"),
    "deleteKvConfig": _works("-s space -k key"),
    "updateOrderConf": _works("-m put -t orders -v broker-a:1", "-m get -t orders", "-m delete -t orders"),
    "wipeWritePerm": _works("-b broker-a", form=Form.WORDS),
    "addWritePerm": _works("-b broker-a", form=Form.WORDS),
    "cleanExpiredCQ": _works("-b {broker}", "-c {cluster}", why="files of queues are deleted soon after the response"),
    "deleteExpiredCommitLog": _works("-b {broker}"),
    "cleanUnusedTopic": _works("-b {broker}", "-c {cluster}"),
    "getNamesrvConfig": _works("", form=Form.NAMES, why="options of Reput's own have its keys"),
    "updateNamesrvConfig": _works(
        "-k serverChannelMaxIdleTimeSeconds -v 110",
        why="live options, until the next reload; an unknown name is rejected",
    ),
    "getBrokerConfig": _works("-b {broker}", form=Form.NAMES, why="options of Reput's own have its keys"),
    "updateBrokerConfig": _works(
        "-b {broker} -k autoCreateTopicEnable -v true",
        "-b {broker} -k brokerPermission -v 6",
        why="live options, until the next reload; a name that is unknown or needs a restart is rejected",
    ),
    "exportMetadata": _works(
        "-c {cluster} -f {files}/export", "-b {broker} -t -f {files}/1", "-b {broker} -g -f {files}/2"
    ),
    "exportConfigs": _works("-c {cluster} -f {files}/export"),
    "exportMetrics": _works("-c {cluster} -f {files}/export"),
    "exportPopRecord": _works("-b {broker} -d true", "-c {cluster} -d false", why="all records are in the log already"),
    "haStatus": _works("-b {broker}", form=Form.WORDS),
    "updateColdDataFlowCtrGroupConfig": _works(
        "-b {broker} -g readers -v 1000", "-c {cluster} -g readers -v 2000", why="until the broker is restarted"
    ),
    "getColdDataFlowCtrInfo": _works(
        "-b {broker}",
        "-c {cluster}",
        form=Form.ALL_NAMES,
        why="groups have no limit but the one that is set; there is none for all together",
        lacks='"cgColdReadThreshold" "globalColdReadThreshold"',
    ),
    "removeColdDataFlowCtrGroupConfig": _works("-b {broker} -g readers", "-c {cluster} -g readers"),
    "setCommitLogReadAheadMode": _works(
        "-b {broker} -m 1", "-c {cluster} -m 0", why="`store.read_ahead`, until the next reload"
    ),
    "checkRocksdbCqWriteProgress": _works(
        "-c {cluster} -t orders", why="the log, to which it refers, says that there is no RocksDB"
    ),
    "updateStaticTopic": _rejected("no static topics", "-t static -qn 4 -c {cluster}"),
    "remappingStaticTopic": _rejected("no static topics, and so it finds none", "-t static -c {cluster}"),
    "getSyncStateSet": _rejected(_NO_CONTROLLER, "-a {names} -b broker-a"),
    "getBrokerEpoch": _rejected(_NO_CONTROLLER, "-b broker-a"),
    "getControllerMetaData": _rejected(_NO_CONTROLLER, "-a {names}"),
    "getControllerConfig": _rejected(_NO_CONTROLLER, "-a {names}"),
    "updateControllerConfig": _rejected(_NO_CONTROLLER, "-a {names} -k x -v y"),
    "electMaster": _rejected(_NO_CONTROLLER, "-a {names} -b 1 -bn broker-a -c {cluster}"),
    "cleanBrokerMetadata": _rejected(_NO_CONTROLLER, "-a {names} -bn broker-a -c {cluster} -b 1"),
    "addBroker": _rejected(_NO_CONTAINER, "-c {broker} -b {files}/x"),
    "removeBroker": _rejected(_NO_CONTAINER, "-c {broker} -b DefaultCluster:broker-a:0"),
    "resetMasterFlushOffset": _works("-b {broker} -o 0", why="a slave writes it into its checkpoint"),
    "dumpCompactionLog": _local("reads a file of a compacted topic, which Reput does not have"),
    "exportMetadataInRocksDB": _local("reads RocketMQ's RocksDB"),
    "rocksDBConfigToJson": _local("reads RocketMQ's RocksDB"),
    "startMonitoring": _works("", form=Form.RUNS, limit_ms=500),
    "deleteSubGroup": _works("-c {cluster} -g billing -r true"),
    "deleteTopic": _works("-c {cluster} -t second"),
}


@dataclass(frozen=True, slots=True)
class UserCommand:
    """A command about users and rules, which runs at a broker with access control; RocketMQ's broker has none here."""

    arguments: str
    prints: str
    """One of its lines, as `plain` makes it."""
    why: str = "with access control"


# In an order in which each finds what it needs.
OF_ACCESS: Final[Mapping[str, UserCommand]] = {
    "createUser": UserCommand(
        "-c {cluster} -u alice -p the-secret-of-alice -t Normal", "create user to ADDRESS success."
    ),
    "getUser": UserCommand(
        "-b {broker} -u alice", "alice null Normal enable", "with access control; no response has a password"
    ),
    "listUser": UserCommand(
        "-c {cluster}", "admin null Super enable", "with access control; no response has a password"
    ),
    "createAcl": UserCommand(
        "-b {broker} -s User:alice -r Topic:orders,Group:g -a Pub,Sub -i 10.0.0.0/8 -d Allow",
        "create acl to ADDRESS success.",
        "with access control; `Create`, `Update` and `Delete` are one right, and there are no default policies",
    ),
    "getAcl": UserCommand("-b {broker} -s User:alice", "User:alice Custom Topic:orders [Pub, Sub] [N.N.N.N/8] Allow"),
    "updateAcl": UserCommand(
        "-c {cluster} -s User:alice -r Topic:orders -a All -d Deny",
        "update acl to ADDRESS success.",
        "with access control; as createAcl",
    ),
    "listAcl": UserCommand("-c {cluster}", "User:alice Custom Topic:orders [All] null Deny"),
    "copyAcl": UserCommand(
        "-f {broker} -t {broker} -s User:alice", "copy acl of User:alice from ADDRESS to ADDRESS success."
    ),
    "updateUser": UserCommand("-b {broker} -u alice -s disable", "update user to ADDRESS success."),
    "copyUser": UserCommand(
        "-f {broker} -t {broker} -u alice",
        "copy user of alice from ADDRESS to ADDRESS success.",
        "with access control; without a password it alters users that both brokers have, and creates none",
    ),
    "deleteAcl": UserCommand("-b {broker} -s User:alice -r Topic:orders", "delete acl to ADDRESS success."),
    "deleteUser": UserCommand("-c {cluster} -u alice", "delete user to ADDRESS success."),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a command printed, and the exceptions that it reported."""

    printed: str
    failed: str


class Shell:
    """Runs commands against one broker, in a JVM that stays."""

    def __init__(self, java: JavaCluster, names: str, broker: str, files: Path) -> None:
        self._java = java
        self._facts: dict[str, Any] = {"names": names, "broker": broker, "files": files, "cluster": "DefaultCluster"}
        files.mkdir()
        (files / "topics.json").write_text(json.dumps(_TOPICS))
        (files / "groups.json").write_text(json.dumps(_GROUPS))

    def names_of_commands(self) -> set[str]:
        """The commands that this `mqadmin` has."""
        return {*re.findall(r"^ {3}(\w+) +\S", self._run("", 0).printed, re.MULTILINE)}

    def run_all(self, progress: Callable[[str], None] = lambda _: None) -> Iterator[tuple[str, str, Run]]:
        """Run every command; yield its name, its arguments and what it printed."""
        for name, command in COMMANDS.items():
            if name == "sendMessage":
                wait_until(lambda: "orders" in self._run("topicList -n {names}", 0).printed, _SETTLED_S)
                ext = {"topic": "orders", "producers": "makers", "consumers": "readers"}
                self._facts |= self._java.ask("clients", names=self._facts["names"], vip=True, **ext)
            if name == "brokerConsumeStats":
                wait_until(self._is_consumed, _SETTLED_S)
            if name == "deleteSubGroup":
                self._java.ask("stop clients")
            for arguments in command.runs:
                started_at = time.monotonic()
                yield name, arguments, self._run(f"{name} {arguments} -n {{names}}", command.limit_ms)
                progress(f"{time.monotonic() - started_at:6.1f} s  {name} {arguments}")

    def run_of_access(self) -> Iterator[tuple[str, UserCommand, Run]]:
        """Run the commands about users; yield its name, the command and what it printed."""
        for name, command in OF_ACCESS.items():
            yield name, command, self._run(f"{name} {command.arguments} -n {{names}}", 0)

    def _is_consumed(self) -> bool:
        """Whether the clients are known, their messages consumed and committed, traces stored and rates counted."""
        trace = self._run("queryMsgTraceById -i {messageId} -n {names}", 0).printed
        progress = self._run("consumerProgress -g readers -n {names}", 0).printed
        producers = self._run("producerConnection -g makers -t orders -n {names}", 0).printed
        stats = self._run("statsAll -t orders -a -n {names}", 0).printed
        return (
            {"Pub", "Sub"} <= {*trace.split()}
            and "Diff Total: 0" in progress
            and re.search(r"^orders +broker-a +0 +2 +2 ", progress, re.MULTILINE) is not None
            and "JAVA" in producers
            and re.search(r"^orders +readers ", stats, re.MULTILINE) is not None
        )

    def _run(self, line: str, limit_ms: int) -> Run:
        arguments = [word.format(**self._facts) for word in line.split()]
        answer = self._java.ask("admin", arguments=arguments, limitMs=limit_ms)
        return Run(_without_log(answer["printed"]), _without_log(answer["failed"]))


def _without_log(text: str) -> str:
    lines = text.splitlines()
    kept = [line for line in lines if not re.match(r"\d\d:\d\d:\d\d,\d+ \|-|\s+at |\s+\.\.\. \d+ more", line)]
    return "\n".join(kept).strip()


_IS_NOT_COMPARED = re.compile(
    # The system's topics; producers of clients' own, which are known after their first heartbeat in half a minute; and
    # a group with the name of the topic, which RocketMQ counts besides the real ones.
    r"rmq_sys_|RMQ_SYS_|\b(?:SELF_TEST_TOPIC|TBW102|BenchmarkTest|OFFSET_MOVED_EVENT|SCHEDULE_TOPIC_XXXX|CID_RMQ_SYS)"
    r"|_REPLY_TOPIC|%RETRY%|_INNER_|\borders +orders\b|^See https:"
)
_STAND_INS = (
    (re.compile(r"/tmp/[^\s,\]]*/"), "DIRECTORY/"),
    (re.compile(r"PID_CLIENT_INNER_TRACE_PRODUCER_[\d.:]+"), "TRACER"),
    (re.compile(r"\d+(?:\.\d+){3}@\d+#\d+"), "CLIENT"),
    (re.compile(r"/?\d+(?:\.\d+){3}:\d+"), "ADDRESS"),
    (re.compile(r"\b[0-9A-F]{32,}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?"), "TIME"),
    (re.compile(r"\b\d{13,}\b"), "TIME"),
    (re.compile(r"\bV\d_\d_\d\b|\bReput [\d.]+"), "VERSION"),
    (re.compile(r"\b\d+\.\d+\b"), "N.N"),
    (re.compile(r"\d+ms\b"), "Nms"),
    (re.compile(r"MessageTrack \[consumerGroup=orders,.*"), ""),
    (re.compile(r"[ \t]+"), " "),
)


def plain(text: str, form: Form) -> list[str]:
    """Return the lines to be compared, sorted: the tools print what they find in any order."""
    for pattern, stand_in in _STAND_INS:
        text = pattern.sub(stand_in, text)
    lines = [line.strip() for line in text.splitlines() if not _IS_NOT_COMPARED.search(line)]
    if form is Form.NAMES:
        lines = [line.partition(" = ")[0] for line in lines if " = " in line]
    elif form is Form.ALL_NAMES:
        lines = [line.partition(":")[0].strip() for line in lines if ":" in line]
    elif form is Form.WORDS:
        lines = [re.sub(r"\d+", "N", line) for line in lines]
    return sorted(filter(None, lines))


def table() -> str:
    """Return the table of docs/compatibility.md."""
    count = sum(command.outcome is Outcome.WORKS for command in COMMANDS.values())
    rows = [
        f"Of the {len(COMMANDS)} commands of `mqadmin` {_version()} (besides those about users) {count} work. So do "
        f"the {len(OF_ACCESS)} about [users](security.md#more-users), at a broker with access control.",
        "",
        "| Command | Result | Remarks |",
        "|---|---|---|",
    ]
    results = {name: (command.outcome, command.why) for name, command in COMMANDS.items()}
    results |= {name: (Outcome.WORKS, command.why) for name, command in OF_ACCESS.items()}
    for name, (outcome, why) in sorted(results.items(), key=lambda item: item[0].lower()):
        rows.append(f"| `{name}` | {outcome} | {why} |")
    return "\n".join(rows) + "\n"


def _version() -> str:
    pom = (apache.SOURCES / "pom.xml").read_text()
    found = re.search(r"<rocketmq\.version>(.*)</rocketmq\.version>", pom)
    assert found is not None
    return found[1]


def write_page() -> None:
    """Replace the table of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin + end == BEGIN + END, f"{PAGE} has no place for the table"
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


@contextmanager
def reput_shell(directory: Path) -> Iterator[tuple[Shell, BrokerProcess]]:
    """A shell of this broker, which is its own name server and has the port of the VIP channel."""
    java = JavaCluster(directory / "java", _home_of(directory))
    port = apache.free_broker_port()
    environment = {"REPUT_FAST_PORT": str(port - 2)}
    try:
        with BrokerProcess(directory / "store", port=port, environment=environment) as broker:
            yield Shell(java, broker.address, broker.address, directory / "files"), broker
    finally:
        java.close()


@contextmanager
def access_shell(directory: Path, other: Shell) -> Iterator[Shell]:
    """The shell of a broker with access control, in the JVM of another one, which is an administrator from now on."""
    conf = _home_of(directory) / "conf"
    conf.mkdir(parents=True)
    (conf / "tools.yml").write_text(f"accessKey: admin\nsecretKey: {_ADMIN_SECRET}\n")
    environment = {"REPUT_ACCESS__ENABLED": "true", "REPUT_ACCESS__ADMIN_SECRET": _ADMIN_SECRET}
    with BrokerProcess(directory / "guarded", environment=environment) as broker:
        yield Shell(other._java, broker.address, broker.address, directory / "guarded-files")


def _home_of(directory: Path) -> Path:
    return directory / "rocketmq"


@contextmanager
def apache_shell(directory: Path) -> Iterator[Shell]:
    """A shell of RocketMQ's broker and name server."""
    java = JavaCluster(directory / "java")
    try:
        names, port = f"127.0.0.1:{free_port()}", apache.free_broker_port()
        java.ask("names", dir=str(directory), port=int(names.rpartition(":")[2]))
        java.start_broker("broker-a", names, port)
        shell = Shell(java, names, f"127.0.0.1:{port}", directory / "files")
        wait_until(lambda: "broker-a" in shell._run("clusterList -n {names}", 0).printed, _SETTLED_S)
        yield shell
    finally:
        java.close()


def main() -> None:
    """Run the commands against RocketMQ's broker, keep what they print, write the page."""
    golden: dict[str, list[list[str]]] = {}
    with tempfile.TemporaryDirectory() as directory, apache_shell(Path(directory)) as shell:
        for name, arguments, run in shell.run_all(print):
            command = COMMANDS[name]
            if command.outcome is Outcome.WORKS:
                assert not run.failed or command.limit_ms, f"{name} {arguments}: {run.failed}"
                golden.setdefault(name, []).append(plain(run.printed, command.form))
    GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    write_page()


if __name__ == "__main__":
    main()
