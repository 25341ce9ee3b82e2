"""What is checked of each feature: functions of a scene and the name of a client, which raise if it does not hold."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from interop import guards
from interop.catalogue import CLIENTS
from interop.client import DEADLINE_S, Client, ClientFailed, Letter, NotReceived, Received
from interop.scene import Scene
from reput_client.blocking import Consumer, Message, Producer, ReceivedMessage
from reput_client.errors import ClientClosed
from reput_protocol.codes import MessageSysFlag, RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.pop import MessageRequestMode

Check = Callable[[Scene, str], None]

_KILLED = 3
"""The process of a client that is killed; no other check uses it."""


def letters_of(count: int, prefix: str = "m") -> list[Letter]:
    """Ordinary messages with different bodies."""
    return [Letter(b"%s-%d" % (prefix.encode(), n)) for n in range(count)]


# Producers: a client sends, our own reads.


def check_send(scene: Scene, name: str) -> None:
    """Each result has the message's id, and its place if the client has it; fields arrive as they were sent."""
    sends(scene, name, "sync", has_places=True)


def check_send_async(scene: Scene, name: str) -> None:
    """As `check_send`."""
    sends(scene, name, "async", has_places=True)


def check_send_oneway(scene: Scene, name: str) -> None:
    """Fields arrive as they were sent."""
    sends(scene, name, "one-way", has_places=False)


def sends(scene: Scene, name: str, how: str, *, has_places: bool) -> None:
    """Have messages sent, and compare what our client reads."""
    topic = scene.topic()
    letters = [Letter(b"body %d" % n, f"tag-{n}", f"key-{n} all", {"number": str(n), "kind": how}) for n in range(6)]
    results = scene.client(name).produce(topic, letters, how)
    messages = scene.collect(topic, len(letters))
    same_letters(letters, messages)
    if has_places:
        by_body = {message.body: message for message in messages}
        for letter, result in zip(letters, results, strict=True):
            message = by_body[letter.body]
            assert result["id"] in (message.message_id, message.offset_message_id), result
            assert result.get("offset", message.queue_offset) == message.queue_offset, result
            assert result.get("queueId", message.queue_id) == message.queue_id, result


def check_send_batch(scene: Scene, name: str) -> None:
    """A batch is in one queue, in order."""
    topic = scene.topic()
    letters = [Letter(b"body %d" % n, f"tag-{n}", f"key-{n}", {"number": str(n)}) for n in range(6)]
    scene.client(name).produce(topic, letters, "batch")
    messages = scene.collect(topic, len(letters))
    same_letters(letters, messages)
    in_one_queue(letters, messages)


def check_send_compressed(scene: Scene, name: str) -> None:
    """A large body travels and is stored compressed, and is read as it was."""
    topic = scene.topic()
    letter = Letter(b"compressible " * 4000)
    scene.client(name).produce(topic, [letter])
    (message,) = scene.collect(topic, 1)
    assert message.body == letter.body
    assert message.sys_flag & MessageSysFlag.COMPRESSED, "the body was sent as it is"
    assert len(message.raw_body) < len(letter.body) / 10


def check_send_orderly(scene: Scene, name: str) -> None:
    """Messages of one key are in one queue, in order."""
    topic = scene.topic()
    letters = letters_of(8)
    scene.client(name).produce(topic, letters, "orderly", key="order-7")
    in_one_queue(letters, scene.collect(topic, len(letters)))


def check_send_delay_level(scene: Scene, name: str) -> None:
    """Level 2 is five seconds."""
    delayed(scene, name, 5000, delayLevel=2)


def check_send_delay_time(scene: Scene, name: str) -> None:
    """Three seconds."""
    delayed(scene, name, 3000, delayMs=3000)


def delayed(scene: Scene, name: str, delay_ms: int, **options: int) -> None:
    """A delayed message arrives, and not before its time; it was born when it was sent."""
    topic = scene.topic()
    scene.client(name).produce(topic, [Letter(b"later", "t", "k", {"p": "v"})], "sync", **options)
    (message,) = scene.collect(topic, 1)
    same_letters([Letter(b"later", "t", "k", {"p": "v"})], [message])
    # The broker's timer counts in seconds.
    assert message.store_timestamp_ms - message.born_timestamp_ms >= delay_ms - 1000


def check_recall(scene: Scene, name: str) -> None:
    """Of two delayed messages one is recalled, and only the other arrives."""
    topic = scene.topic(1)
    client = scene.client(name)
    (recalled,) = client.produce(topic, [Letter(b"recalled")], delayMs=6000)
    client.produce(topic, [Letter(b"kept")], delayMs=9000)
    client.recall(topic, recalled["recallHandle"])
    (message,) = scene.collect(topic, 1)
    assert message.body == b"kept"


def check_send_priority(scene: Scene, name: str) -> None:
    """A message keeps its priority, and is in the queue of that: higher ones are consumed first."""
    topic, priorities = scene.topic(4, kind="PRIORITY"), (1, 3, 0)
    for priority in priorities:
        scene.client(name).produce(topic, [Letter(b"%d" % priority)], priority=priority)
    found = {message.body: message for message in scene.collect(topic, len(priorities))}
    for priority in priorities:
        message = found[b"%d" % priority]
        assert (message.priority, message.queue_id) == (priority, priority)


def check_send_transaction(scene: Scene, name: str) -> None:
    """What is committed at once or when the broker asks arrives, and what is rolled back does not."""
    # Only of topics of this type does RocketMQ's proxy take the broker's questions.
    topic = scene.topic(kind="TRANSACTION")
    decisions = ("rollback", "commit", "unknown")
    letters = [Letter(each.encode(), properties={"decision": each}) for each in decisions]
    scene.client(name).produce(topic, letters, "transaction")
    messages = scene.collect(topic, 2)
    assert {message.body for message in messages} == {b"commit", b"unknown"}


def same_letters(letters: Sequence[Letter], messages: Sequence[ReceivedMessage]) -> None:
    """Assert that messages have the fields of what was sent; other properties may have been added."""
    by_body = {message.body: message for message in messages}
    assert by_body.keys() == {letter.body for letter in letters}
    for letter in letters:
        message = by_body[letter.body]
        assert message.tag == letter.tag
        assert same_keys(" ".join(message.keys), letter.keys)
        assert letter.properties.items() <= message.properties.items()


def same_keys(one: str | None, other: str | None) -> bool:
    """Whether these are the same keys; to some clients they are a set."""
    return sorted((one or "").split()) == sorted((other or "").split())


def in_one_queue(letters: Sequence[Letter], messages: Sequence[ReceivedMessage]) -> None:
    """Assert that messages are in one queue, in the order of sending."""
    assert len({message.queue_id for message in messages}) == 1
    ordered = sorted(messages, key=lambda message: message.queue_offset)
    assert [message.body for message in ordered] == [letter.body for letter in letters]


# Consumers: ours sends, the client reads.


def check_concurrent(scene: Scene, name: str) -> None:
    """Every message is received once, those from before the start and those from after."""
    consumes(scene, name, "concurrent")


def check_lite_pull(scene: Scene, name: str) -> None:
    """As `check_concurrent`."""
    consumes(scene, name, "lite")


def check_pop(scene: Scene, name: str) -> None:
    """As `check_concurrent`, with a consumer that has no queues and asks the broker for messages of any."""
    received = consumes(scene, name, "pop")
    if not CLIENTS[name].through_proxy:
        assert all("POP_CK" in each.properties for each in received)


def pops(scene: Scene, group: str, topic: str) -> None:
    """Have a group pop a topic, as `mqadmin setConsumeMode` does."""
    with scene.admin() as admin:
        admin.put_group(SubscriptionGroupConfig(group))
    mode = MessageRequestMode(topic, group, "POP", 0)
    scene.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode.to_json())


def consumes(scene: Scene, name: str, how: str) -> list[Received]:
    """Send before and after a consumer starts; it receives all once."""
    topic, group, consumer = scene.topic(), scene.name("group"), scene.name("consumer")
    before, after = letters_of(20, "before"), letters_of(20, "after")
    if how == "pop":
        pops(scene, group, topic)
    scene.send(topic, before)
    scene.client(name).consume(consumer, group, topic, how)
    scene.send(topic, after)
    received = received_once(scene, name, [consumer], [*before, *after])
    scene.client(name).stop(consumer)
    return received


def check_simple(scene: Scene, name: str) -> None:
    """What is acknowledged does not come again; what is made visible does, as it was."""
    topic, consumer = scene.topic(), scene.name("consumer")
    letters = letters_of(6)
    scene.send(topic, letters)
    scene.client(name).consume(consumer, scene.name("group"), topic, "simple", fail=1)
    received = wait(scene, name, [consumer], lambda found: len(found) >= 2 * len(letters))
    assert sorted((each.body, each.times) for each in received) == sorted(
        (letter.body, times) for letter in letters for times in (0, 1)
    )
    assert len({each.id for each in received}) == len(letters)
    scene.client(name).stop(consumer)


def check_pull(scene: Scene, name: str) -> None:
    """A consumer pulls each queue from the group's offset on; the next one begins where it has ended."""
    topic, group = scene.topic(), scene.name("group")
    for prefix in ("first", "second"):
        letters, consumer = letters_of(20, prefix), scene.name("consumer")
        scene.send(topic, letters)
        scene.client(name).consume(consumer, group, topic, "pull")
        received_once(scene, name, [consumer], letters)
        scene.client(name).stop(consumer)


def check_orderly(scene: Scene, name: str) -> None:
    """Each queue's messages are received in order, although the first delivery of each fails."""
    topic, group, consumer = scene.topic(2), scene.name("group"), scene.name("consumer")
    with scene.admin() as admin:
        # By this RocketMQ's proxy decides how the group consumes.
        admin.put_group(SubscriptionGroupConfig(group, consume_message_orderly=True))
    letters = letters_of(12)
    scene.send(topic, letters, [n % 2 for n in range(12)])
    scene.client(name).consume(consumer, group, topic, "orderly", fail=1)
    received = wait(scene, name, [consumer], lambda found: len(found) >= 2 * len(letters))
    orders: dict[int, list[bytes]] = defaultdict(list)
    queues = {letter.body: number % 2 for number, letter in enumerate(letters)}
    for each in received:
        orders[queues[each.body]].append(each.body)
    assert orders == {queue: [letter.body for letter in letters[queue::2] for _ in range(2)] for queue in (0, 1)}
    scene.client(name).stop(consumer)


def check_broadcasting(scene: Scene, name: str) -> None:
    """Each of two members receives every message once. Where they begin is the client's own decision."""
    topic, group = scene.topic(), scene.name("group")
    consumers = {scene.name("consumer"): number for number in (1, 2)}
    for consumer, number in consumers.items():
        scene.client(name, number).consume(consumer, group, topic, "broadcasting")
        have_begun(scene, topic, consumer)
    letters = letters_of(20)
    scene.send(topic, letters)
    bodies = {letter.body for letter in letters}
    for consumer, number in consumers.items():
        received = wait(scene, name, [consumer], lambda found: bodies <= {each.body for each in found})
        assert sorted(each.body for each in received if each.body in bodies) == sorted(bodies)
        scene.client(name, number).stop(consumer)


def have_begun(scene: Scene, topic: str, consumer: str) -> None:
    """Send rounds of a message to each queue until a consumer receives a whole round."""
    for number in range(60):
        letters = letters_of(4, f"{consumer}-round-{number}")
        bodies = {letter.body for letter in letters}
        scene.send(topic, letters, range(4))
        with suppress(NotReceived):
            scene.inbox.wait(
                [consumer],
                lambda found, bodies=bodies: bodies <= {each.body for each in found},  # type: ignore[misc]
                consumer,
                deadline_s=3.0,
            )
            return
    raise AssertionError(f"{consumer} has received none of 60 rounds")


def check_tags(scene: Scene, name: str) -> None:
    """Two of three tags, of which two have the same hash code."""
    letters = [Letter(b"%d" % n, ("Aa", "BB", "paid")[n % 3]) for n in range(18)]
    filtered(scene, name, letters, lambda letter: letter.tag in ("Aa", "paid"), tags="Aa || paid")


def check_sql(scene: Scene, name: str) -> None:
    """An expression on two properties."""
    letters = [Letter(b"%d" % n, properties={"n": str(n), "colour": ("red", "blue")[n % 2]}) for n in range(18)]
    filtered(
        scene,
        name,
        letters,
        lambda letter: int(letter.properties["n"]) > 7 and letter.properties["colour"] == "red",
        sql="n > 7 AND colour = 'red'",
    )


def filtered(
    scene: Scene, name: str, letters: Sequence[Letter], wanted: Callable[[Letter], bool], **options: str
) -> None:
    """A consumer with a filter receives what is wanted, and nothing else of its queue."""
    topic, consumer = scene.topic(1), scene.name("consumer")
    scene.send(topic, letters)
    scene.client(name).consume(consumer, scene.name("group"), topic, **options)
    received_once(scene, name, [consumer], [letter for letter in letters if wanted(letter)])
    scene.client(name).stop(consumer)


def check_retry(scene: Scene, name: str) -> None:
    """What fails once is received again, by the retry topic, with the same id."""
    topic, consumer = scene.topic(), scene.name("consumer")
    letters = letters_of(4)
    scene.send(topic, letters)
    scene.client(name).consume(consumer, scene.name("group"), topic, fail=1)
    received = wait(scene, name, [consumer], lambda found: len(found) >= 2 * len(letters))
    assert sorted((each.body, each.times) for each in received) == sorted(
        (letter.body, times) for letter in letters for times in (0, 1)
    )
    assert len({each.id for each in received}) == len(letters)
    scene.client(name).stop(consumer)


def check_dead_letter(scene: Scene, name: str) -> None:
    """What fails more often than the group allows is in its dead letters."""
    topic, group, consumer = scene.topic(), scene.name("group"), scene.name("consumer")
    with scene.admin() as admin:
        admin.put_group(SubscriptionGroupConfig(group, retry_max_times=1))
    letters = letters_of(2)
    scene.send(topic, letters)
    scene.client(name).consume(consumer, group, topic, fail=1000, maxTimes=1)
    # Not for the second delivery of each: the C++ client gives back the rest of a batch with what has failed.
    received = wait(scene, name, [consumer], lambda found: any(each.times == 1 for each in found))
    dead = scene.collect(f"%DLQ%{group}", len(letters))
    assert {message.body for message in dead} == {letter.body for letter in letters}
    assert sorted(each.times for each in received)[:3] == [0, 0, 1]
    scene.client(name).stop(consumer)


def received_once(scene: Scene, name: str, consumers: Sequence[str], letters: Sequence[Letter]) -> list[Received]:
    """Wait until these consumers have received as many messages as were sent; each must have come once."""
    received = wait(scene, name, consumers, lambda found: len(found) >= len(letters))
    assert sorted(each.body for each in received) == sorted(letter.body for letter in letters)
    return received


def wait(scene: Scene, name: str, consumers: Sequence[str], enough: Callable[[list[Received]], bool]) -> list[Received]:
    """Wait for the inbox of consumers of a client, as long as it lives."""
    return scene.inbox.wait(consumers, enough, f"{name} consumes", scene.client(name).check_alive)


# Requests


def check_request(scene: Scene, name: str) -> None:
    """The client gets the reply of ours."""
    topic = scene.topic()
    consumer = Consumer(scene.address, group=scene.name("group"), topic=topic, start="earliest", timeout_s=60.0)
    with Producer(scene.address, timeout_s=60.0) as producer, consumer:

        def work() -> None:
            with suppress(ClientClosed):
                for message in consumer:
                    producer.reply(message, b"reply to " + message.body, timeout_s=60.0)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(3):
                assert scene.client(name).request(topic, b"ping %d" % number) == b"reply to ping %d" % number
        finally:
            consumer.close()
            thread.join()


def check_reply(scene: Scene, name: str) -> None:
    """Our client gets the client's reply."""
    topic, consumer = scene.topic(), scene.name("consumer")
    scene.client(name).consume(consumer, scene.name("group"), topic, reply=True)
    with Producer(scene.address, timeout_s=60.0) as producer:
        for number in range(3):
            assert producer.request(Message(topic, b"ping %d" % number)).body == b"reply to ping %d" % number
    scene.client(name).stop(consumer)


# Between languages


def check_fields(scene: Scene, name: str) -> None:
    """What each client has sent is received with equal fields and the same id."""
    topic, whole = scene.exchange()
    ends_at_zero = CLIENTS[name].bodies_end_at_zero
    sent = {body.partition(b"\0")[0] if ends_at_zero else body: fields for body, fields in whole.items()}
    consumer = scene.name("consumer")
    scene.client(name).consume(consumer, scene.name("group"), topic)
    received = wait(scene, name, [consumer], lambda found: sent.keys() <= {each.body for each in found})
    assert len(received) == len(sent), Counter((each.queue_id, each.offset) for each in received)
    for each in received:
        sender, letter, ids = sent[each.body]
        assert each.tag == letter.tag, f"from {sender}"
        assert same_keys(each.keys, letter.keys), f"from {sender}: {each.keys}"
        wrong = letter.properties.items() - each.properties.items()
        assert not wrong, f"from {sender}: {wrong}"
        assert each.id in ids, f"from {sender}: {each.id} is none of {ids}"
    scene.client(name).stop(consumer)


def check_shared_group(scene: Scene, name: str) -> None:
    """A group with a member of each of two clients: every message is received once, by either.

    Those that pop share it with another that does.
    """
    if CLIENTS[name].through_proxy:
        group_of_two(scene, (name, 1), ("java-5", 2), kill=False, how="pop")
    else:
        group_of_two(scene, (name, 1), ("reput", 2), kill=False)


def check_member_killed(scene: Scene, name: str) -> None:
    """Of two members one is killed; the other receives what is sent from then on, in all queues."""
    how = "pop" if CLIENTS[name].through_proxy else "concurrent"
    group_of_two(scene, (name, 1), (name, _KILLED), kill=True, how=how)


def group_of_two(
    scene: Scene, first: tuple[str, int], second: tuple[str, int], *, kill: bool, how: str = "concurrent"
) -> None:
    """Two members of one group, until both receive; then all messages once, or a kill.

    Members that do not pop must have shared out the queues by halves.
    """
    topic, group = scene.topic(), scene.name("group")
    members = {scene.name("consumer"): first, scene.name("consumer"): second}
    if how == "pop":
        pops(scene, group, topic)
    for consumer, process in members.items():
        scene.client(*process).consume(consumer, group, topic, how)
    parts = settled(scene, topic, members)
    assert how == "pop" or all(len(queues) == 2 for queues in parts.values()), parts
    if kill:
        scene.kill(*second)
    letters = letters_of(80)
    scene.send(topic, letters, [n % 4 for n in range(80)])
    staying = next(iter(members))
    bodies = {letter.body for letter in letters}
    received = [
        each
        for each in scene.inbox.wait(
            [staying] if kill else list(members),
            lambda found: bodies <= {each.body for each in found},
            f"{first[0]} in a group",
            scene.client(*first).check_alive,
        )
        if each.body in bodies
    ]
    assert sorted(each.body for each in received) == sorted(bodies)
    for consumer, process in members.items():
        if not (kill and process == second):
            scene.client(*process).stop(consumer)


def settled(scene: Scene, topic: str, members: dict[str, tuple[str, int]]) -> dict[str, set[int]]:
    """Send rounds of a message to each queue until each member has received a part of one, and return the parts."""
    queues: dict[str, set[int]] = {}
    ends_at = time.monotonic() + DEADLINE_S
    for number in itertools.count():
        letters = letters_of(4, f"round-{number}")
        scene.send(topic, letters, range(4))
        bodies = {letter.body for letter in letters}

        def complete(found: list[Received], bodies: set[bytes] = bodies) -> bool:
            return bodies <= {each.body for each in found}

        found = scene.inbox.wait(list(members), complete, f"round {number} of {members}")
        queues = defaultdict(set)
        for each in found:
            if each.body in bodies:
                queues[each.consumer].add(letters.index(Letter(each.body)))
        if len(queues) == len(members) and sum(map(len, queues.values())) == 4:
            return queues
        if time.monotonic() > ends_at:
            break
    raise AssertionError(f"after {DEADLINE_S:.0f} s the queues are not shared out: {dict(queues)}")


def check_broker_killed(scene: Scene, name: str) -> None:
    """Producer and consumer go on after a kill of the broker; nothing that was acknowledged is missing.

    The scene is the check's own.
    """
    topic, consumer = scene.topic(), scene.name("consumer")
    client = scene.client(name)
    client.consume(consumer, scene.name("group"), topic)
    before = letters_of(10, "before")
    client.produce(topic, before)
    wait(scene, name, [consumer], lambda found: len(found) >= len(before))
    scene.restart_broker()
    after = letters_of(10, "after")
    for letter in after:
        sent_in_the_end(scene, name, topic, letter)
    bodies = {letter.body for letter in (*before, *after)}
    wait(scene, name, [consumer], lambda found: bodies <= {each.body for each in found})
    stored = {message.body for message in scene.collect(topic, len(bodies))}
    assert stored == bodies


# Closed brokers; the scenes are the checks' own.


def check_tls(scene: Scene, name: str) -> None:
    """The client sends and consumes at a broker that takes TLS only."""
    exchanges(scene, name)


def check_users(scene: Scene, name: str) -> None:
    """The client sends and consumes as a user; what the user may not do is refused."""
    exchanges(scene, name)
    refused(scene, scene.client(name), scene.topic(prefix="another"))


def check_wrong_secret(scene: Scene, name: str) -> None:
    """A client that signs with another secret than the user's gets an error."""
    stranger = scene.client(name, environment={"INTEROP_SECRET": "a-wrong-secret"})
    refused(scene, stranger, scene.topic())


def exchanges(scene: Scene, name: str) -> None:
    """The client sends and receives; ours is the other end."""
    topic, consumer = scene.topic(), scene.name("consumer")
    letters = letters_of(5)
    scene.client(name).produce(topic, letters)
    same_letters(letters, scene.collect(topic, len(letters)))
    scene.client(name).consume(consumer, scene.name("group"), topic)
    received_once(scene, name, [consumer], letters)
    scene.client(name).stop(consumer)


def refused(scene: Scene, client: Client, topic: str) -> None:
    """Assert that a client reports an error to its caller, and that nothing is stored."""
    try:
        client.produce(topic, letters_of(1))
    except ClientFailed:
        client.check_alive()
    else:
        raise AssertionError("the client did not report an error")
    with scene.admin() as admin:
        assert sum(admin.max_offset(topic, queue) for queue in range(4)) == 0


def sent_in_the_end(scene: Scene, name: str, topic: str, letter: Letter) -> None:
    """Send, again while the client reports an error, as an application does."""
    for _ in range(20):
        try:
            scene.client(name).produce(topic, [letter])
            return
        except ClientFailed as error:
            last = error
            scene.client(name).check_alive()
    raise last


CHECKS: dict[str, Check] = {
    "send": check_send,
    "send-async": check_send_async,
    "send-oneway": check_send_oneway,
    "send-batch": check_send_batch,
    "send-compressed": check_send_compressed,
    "send-orderly": check_send_orderly,
    "send-delay-level": check_send_delay_level,
    "send-delay-time": check_send_delay_time,
    "recall": check_recall,
    "send-priority": check_send_priority,
    "send-transaction": check_send_transaction,
    "concurrent": check_concurrent,
    "orderly": check_orderly,
    "broadcasting": check_broadcasting,
    "tags": check_tags,
    "sql": check_sql,
    "retry": check_retry,
    "dead-letter": check_dead_letter,
    "lite-pull": check_lite_pull,
    "pop": check_pop,
    "simple": check_simple,
    "pull": check_pull,
    "request": check_request,
    "reply": check_reply,
    "fields": check_fields,
    "shared-group": check_shared_group,
    "member-killed": check_member_killed,
    "broker-killed": check_broker_killed,
    "tls": check_tls,
    "users": check_users,
    "wrong-secret": check_wrong_secret,
}
"""By the name of the feature."""

ALONE = {"broker-killed": guards.none, "tls": guards.tls, "users": guards.users, "wrong-secret": guards.users}
"""Features whose check needs a scene of its own, and what closes its broker."""
