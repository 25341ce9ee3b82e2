"""`reput group ...` against a real broker: output, prompts, refusals and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from reput_client.blocking import Admin, Message, Producer
from support.broker_process import BrokerProcess
from support.command import Cli, reput
from support.group_client import GroupClient

pytestmark = pytest.mark.process

_numbers = count()
HEAD = "topic\tqueue\tcommitted\tnew\tmove"


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic with one queue of ten messages, of which the group of the same name has consumed four."""
    name = f"t{next(_numbers)}"
    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.create_topic(name, queues=1)
    with Producer(broker.address, group="p") as producer:
        producer.send_batch([Message(name, b"%d" % number) for number in range(10)])
    client = GroupClient(broker.address, "setup", name)
    assert client.commit(name, 4).code == 0
    client.close()
    return name


@pytest.fixture
def cli(broker: BrokerProcess) -> Cli:
    return Cli(broker.address, "group")


@pytest.fixture
def member(broker: BrokerProcess, topic: str) -> Iterator[GroupClient]:
    client = GroupClient(broker.address, "m1", topic)
    client.heartbeat(topic)
    client.pull(topic, 4)
    yield client
    client.close()


def test_list_describe_and_members(cli: Cli, topic: str, member: GroupClient) -> None:
    listed = next(row for row in cli.json("list") if row["group"] == topic)
    assert listed["lag_age_s"] is None or listed["lag_age_s"] > 0, "None until the broker has looked"
    del listed["lag_age_s"]
    assert listed == {
        "group": topic,
        "state": "ok",
        "members": 1,
        "topics": [f"%RETRY%{topic}", topic],
        "lag": 6,
        "since_ms": None,
        "member": None,
        "queue": None,
        "reason": None,
    }
    (queue,) = cli.json("describe", topic, "--topic", topic)
    assert queue["lag_age_s"] > 0
    assert queue["last_commit_ms"] > 1_700_000_000_000
    numbers = {key: queue[key] for key in ("start", "end", "committed", "lag", "inflight", "member")}
    assert numbers == {"start": 0, "end": 10, "committed": 4, "lag": 6, "inflight": 6, "member": "m1"}
    plain = cli("describe", topic)
    assert plain.stdout.splitlines()[0].split("\t") == [
        "topic", "queue", "start", "end", "committed", "lag", "lag_age_s", "inflight", "member", "last_commit_ms",
    ]  # fmt: skip
    assert plain.stderr == f"group {topic}: ok, 1 member online, clustering, lag 6\n"
    (row,) = cli.json("members", topic)
    assert (row["client_id"], row["language"], row["queues"], row["locks"]) == ("m1", "PYTHON", 1, 0)
    assert f"subscribes to {topic} with '*' (TAG)" in cli("members", topic).stderr
    table = cli("describe", topic, "-O", "table").stdout
    assert "LAST_COMMIT" in table
    assert " ago" in table
    assert table.index(f"topic {topic}, ") < table.index(f"topic %RETRY%{topic}, ")
    assert "error: " in cli("describe", "no_such_group", code=5).stderr


def test_reset_shows_its_plan_and_asks(cli: Cli, topic: str) -> None:
    shown = cli("reset", topic, topic, "--to", "earliest", "--dry-run")
    assert shown.stdout.splitlines() == [HEAD, f"{topic}\t0\t4\t0\t-4"]
    assert "nothing was changed" in shown.stderr
    assert "the name was not typed" in cli("reset", topic, topic, "--to", "latest", text="no\n", code=1).stderr
    assert cli.json("describe", topic)[0]["committed"] == 4
    done = cli("reset", topic, topic, "--to", "latest", text=f"{topic}\n")
    assert f"group {topic} continues there, in 1 queue\n" in done.stderr
    assert cli.json("describe", topic)[0]["committed"] == 10
    assert "is there already" in cli("reset", topic, topic, "--to", "latest").stderr


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 10),
        (("--to", "7"), 7),
        (("--to=-2",), 8),
        (("--to", "@-1h"), 0),
        (("--to", "@2100-01-01T00:00:00Z"), 10),
        (("--shift", "3"), 7),
        (("--shift=-3",), 1),
    ],
)
def test_offsets_after_reset(cli: Cli, topic: str, where: tuple[str, ...], offset: int) -> None:
    cli("reset", topic, topic, *where, "--yes")
    assert cli.json("describe", topic)[0]["committed"] == offset


def test_invalid_resets(cli: Cli, topic: str) -> None:
    cli("reset", topic, topic, code=2)
    cli("reset", topic, topic, "--to", "1", "--shift", "1", code=2)
    assert "not a position" in cli("reset", topic, topic, "--to", "noon", code=2).stderr
    cli("reset", "no_such_group", topic, "--to", "1", code=5)
    cli("reset", topic, "no_such_topic", "--to", "1", code=5)
    assert "has no queue 7" in cli("reset", topic, topic, "--to", "1", "--queue", "7", code=1).stderr


def test_members_that_are_online_stand_in_the_way_unless_forced(cli: Cli, topic: str, member: GroupClient) -> None:
    for arguments in (("reset", topic, topic, "--to", "0"), ("skip", topic, topic), ("delete", topic)):
        refused = cli(*arguments, "--yes", code=1)
        assert "1 member online" in refused.stderr
        assert "--force" in refused.stderr
    assert member.committed(topic) == 4
    cli("reset", topic, topic, "--to", "0", "--yes", "--force")
    assert member.next_asked(220)[0].ext["group"] == topic
    assert member.committed(topic) == 0


def test_skip_passes_over_what_waits_or_over_a_few(cli: Cli, topic: str) -> None:
    cli("skip", topic, topic, "--queue", "0", "--count", "1", "--yes")
    assert cli.json("describe", topic)[0]["committed"] == 5
    assert "--yes" in cli("skip", topic, topic, code=2).stderr
    cli("skip", topic, topic, "--yes")
    assert cli.json("describe", topic)[0]["committed"] == 10


def test_a_count_is_skipped_in_one_queue_only(cli: Cli, broker: BrokerProcess) -> None:
    topic = "of_two_queues"
    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.create_topic(topic, queues=2)
    client = GroupClient(broker.address, "setup", topic)
    assert client.commit(topic, 0).code == 0
    client.close()
    cli("reset", topic, topic, "--to", "0", "--yes")
    refused = cli("skip", topic, topic, "--count", "1", "--yes", code=2)
    assert "has 2 queues" in refused.stderr
    assert "--queue" in refused.stderr


def test_clone_copies_offsets(cli: Cli, topic: str) -> None:
    target = f"{topic}-copy"
    shown = cli("clone", topic, target, "--dry-run")
    assert shown.stdout.splitlines() == [HEAD, f"{topic}\t0\t-\t4\t-"]
    cli("describe", target, code=5)
    cli("clone", topic, target, "--yes")
    assert cli.json("describe", target)[0]["committed"] == 4
    cli("clone", "no_such_group", target, "--yes", code=5)


def test_a_group_s_life(cli: Cli, broker: BrokerProcess) -> None:
    name = f"g{next(_numbers)}"
    assert "created" in cli("create", name, "--retry-max", "3", "--orderly").stderr
    assert "already exists" in cli("create", name).stderr
    assert "disabled, at most 3 retries" in cli("alter", name, "--disable").stderr
    (row,) = [row for row in cli.json("list") if row["group"] == name]
    assert (row["state"], row["reason"]) == ("ok", "the group may not consume")
    assert f"{name} is ok: the group may not consume\n" in cli("list", "-O", "table").stderr
    assert cli("describe", name).stderr.startswith(f"group {name}: ok (the group may not consume), 0 members")
    assert "enabled, at most 5 retries" in cli("alter", name, "--enable", "--retry-max", "5").stderr
    cli("alter", name, code=2)
    with Admin(broker.address) as admin:
        assert admin.group_config(name).consume_message_orderly
        cli("alter", name, "--not-orderly")
        assert not admin.group_config(name).consume_message_orderly
    cli("alter", "no_such_group", "--disable", code=5)
    client = GroupClient(broker.address, "a", name)
    client.heartbeat("T")
    client.leave()
    client.close()
    shown = cli("delete", name, "--dry-run")
    assert "retry topic with 0 messages is deleted" in shown.stderr
    cli("delete", name, text="no\n", code=1)
    cli("delete", name, "--yes")
    cli("describe", name, code=5)
    with Admin(broker.address, timeout_s=30.0) as admin:
        assert f"%RETRY%{name}" not in admin.list_topics()


def test_what_does_not_exist_is_not_to_be_created_to_be_deleted(cli: Cli) -> None:
    for done in (
        cli("delete", "nosuch", "--yes", code=5),
        reput("topic", "delete", "nosuch", "--yes", server=cli.server),
    ):
        assert done.returncode == 5
        assert "does not exist; nothing was deleted" in done.stderr
        assert "create" not in done.stderr


@pytest.mark.parametrize(("tag", "is_other"), [("*", False), ("A", True)])
def test_a_member_with_another_filter_is_refused_unless_forced(
    cli: Cli, topic: str, member: GroupClient, tag: str, is_other: bool
) -> None:
    line = ("consume", topic, "--group", topic, "--tag", tag, "--end")
    what = f"the members of group {topic} read {topic} with the filter '*', this one with 'A'"
    done = reput(*line, server=cli.server)
    assert done.returncode == (1 if is_other else 0)
    assert (what in done.stderr) == is_other
    assert ("--force joins nevertheless" in done.stderr) == is_other
    forced = reput(*line, "--force", server=cli.server)
    assert forced.returncode == 0
    assert (what in forced.stderr) == is_other


def test_a_time_that_has_passed_is_named(cli: Cli, topic: str) -> None:
    done = reput("produce", topic, "late", "--at", "2020-01-02T03:04:05Z", server=cli.server)
    assert done.returncode == 0
    assert "ago: consumers get the messages immediately" in done.stderr
