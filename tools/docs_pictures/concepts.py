"""The diagrams of docs/concepts.md."""

from __future__ import annotations

from docs_pictures.drawing import Drawing, sequence


def topics() -> str:
    """Producers, the queues of a topic, and what two groups have committed."""
    d = Drawing(760, 330, "Messages of a producer in two queues of a topic, which two groups read")
    d.box(8, 96, 118, 62, "producer", "shop")
    d.frame(236, 16, 230, 236, "topic orders")
    for number, (y, count) in enumerate(((50, 5), (154, 3))):
        d.text(252, y + 14, f"queue {number}", "soft", "start")
        d.cells(252, y + 22, range(count), ["main"] * count)
        d.text(252, y + 76, "offsets", "soft", "start")
    d.arrow((126, 116), (236, 88))
    d.text(176, 84, "customer 7", "soft")
    d.arrow((126, 138), (236, 192))
    d.text(166, 188, "customer 8", "soft")
    d.frame(556, 4, 196, 168, "group billing")
    d.box(570, 36, 168, 56, "member 1", "committed: 4")
    d.box(570, 104, 168, 56, "member 2", "committed: 3")
    d.frame(556, 196, 196, 124, "group reports")
    d.box(570, 228, 168, 78, "its only member", "committed: 0 in queue 0", "and 0 in queue 1")
    d.arrow((466, 84), (568, 62))
    d.arrow((466, 180), (568, 136))
    d.arrow((466, 110), (568, 250), dashed=True)
    d.arrow((466, 214), (568, 280), dashed=True)
    d.text(120, 290, "The ordering key, here the customer, chooses the queue.", "soft", "start")
    return d.svg()


def commits() -> str:
    """A queue with a committed offset, what is being handled, and the lag."""
    d = Drawing(760, 176, "A queue: before the committed offset everything is handled; after it is the lag")
    d.text(12, 80, "queue 0", "strong", "start")
    kinds = ["main"] * 4 + ["warn"] * 2 + ["box"] * 3
    d.cells(100, 56, range(9), kinds, size=52)
    d.mark(100 + 4 * 52, 40, 84)
    d.text(100 + 4 * 52, 32, "committed: 4", "strong")
    d.mark(100 + 9 * 52, 40, 84)
    d.text(100 + 9 * 52, 32, "end of the queue: 9", "strong")
    d.text(204, 130, "handled", "soft")
    d.text(360, 130, "being handled", "soft")
    d.text(490, 130, "not pulled yet", "soft")
    d.arrow((560, 152), (310, 152))
    d.arrow((318, 152), (566, 152))
    d.text(438, 170, "lag: 5 messages", "strong")
    d.arrow((640, 82), (574, 82), dashed=True)
    d.text(646, 87, "new messages", "soft", "start")
    return d.svg()


def acks() -> str:
    """How far a message has come when each level is acknowledged."""
    d = Drawing(760, 252, "The three ack levels: in the page cache, on the disk, on the disks of several brokers")
    d.box(8, 64, 104, 56, "producer", "send")
    d.frame(166, 16, 336, 168, "broker, on its machine")
    d.box(184, 64, 130, 56, "page cache", "memory")
    d.box(354, 64, 130, 56, "disk", "fdatasync", kind="main")
    d.frame(556, 16, 196, 168, "another machine")
    d.box(572, 64, 164, 56, "disk of a slave", "its own fdatasync")
    d.arrow((112, 92), (182, 92))
    d.arrow((314, 92), (352, 92))
    d.arrow((484, 92), (570, 92))
    for x, level, survives in (
        (249, "page_cache", "a crash of the broker"),
        (419, "flushed, the default", "a crash of the machine"),
        (654, "replicated", "the loss of a machine"),
    ):
        d.arrow((x, 122), (x, 198), dashed=True)
        d.text(x, 216, level, "strong")
        d.text(x, 238, survives, "soft")
    d.text(8, 216, "acknowledged as", "soft", "start")
    d.text(8, 238, "it survives", "soft", "start")
    return d.svg()


def exchange() -> str:
    """Who acknowledges what, and when."""
    return sequence(
        "The broker acknowledges a send, and a consumer commits what it has handled",
        (("producer",), ("broker",), ("its disk",), ("consumer",)),
        (
            (0, 1, "send"),
            (1, 2, "append, fdatasync"),
            (2, 1, "done"),
            (1, 0, "receipt, ack = flushed"),
            (3, 1, "pull from the committed offset"),
            (1, 3, "messages"),
            (3, 3, "the handler returns"),
            (3, 1, "commit"),
        ),
        gap=190,
    )


def retries() -> str:
    """The way of a message that a handler cannot handle."""
    d = Drawing(760, 268, "A message that fails is redelivered by a retry topic, and in the end is a dead letter")
    d.box(8, 30, 130, 56, "topic orders")
    d.box(238, 30, 176, 56, "handler", "of the group billing", kind="main")
    d.box(562, 30, 188, 56, "committed")
    d.box(330, 186, 210, 66, "%RETRY%billing", "waits 10 s, 30 s, ... 2 h", kind="warn")
    d.box(590, 186, 160, 66, "%DLQ%billing", "dead letters", kind="bad")
    d.arrow((138, 58), (236, 58))
    d.arrow((414, 58), (560, 58))
    d.text(487, 50, "returns", "soft")
    d.arrow((376, 86), (420, 184))
    d.text(408, 124, "raises", "soft", "start")
    d.arrow((350, 184), (290, 88))
    d.text(302, 148, "redelivered", "soft", "end")
    d.arrow((414, 74), (640, 184))
    d.text(548, 116, "raises for the last time,", "soft", "start")
    d.text(566, 134, "or message.reject()", "soft", "start")
    d.arrow((670, 252), (670, 262), (73, 262), (73, 88), dashed=True)
    d.text(88, 254, "reput dlq replay", "mono", "start")
    return d.svg()


def pop() -> str:
    """Messages of one queue with several workers."""
    d = Drawing(760, 300, "Workers pop single messages, which are invisible until they are acknowledged")
    d.text(12, 76, "a queue", "strong", "start")
    kinds = ["main", "warn", "main", "warn", "warn", "box", "box", "box"]
    d.cells(100, 46, range(8), kinds, size=52)
    for number, (message, name, text) in enumerate(
        ((1, "worker 1", "long job"), (3, "worker 2", "working"), (4, "worker 3", "has died"))
    ):
        x = 64 + number * 218
        d.box(x, 176, 150, 56, name, text, kind="bad" if number == 2 else "box")
        d.arrow((126 + message * 52, 98), (x + 75, 174))
    d.text(64, 258, "acknowledged: 0 and 2 are done, although 1 is not", "soft", "start")
    d.text(64, 280, "4 is delivered to another worker when its invisible time ends", "soft", "start")
    d.text(126, 36, "done", "soft")
    d.text(178, 36, "invisible", "soft")
    d.text(230, 36, "done", "soft")
    d.text(308, 36, "invisible", "soft")
    d.text(438, 36, "available", "soft")
    return d.svg()
