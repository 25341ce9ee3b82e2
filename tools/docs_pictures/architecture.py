"""The diagrams of ARCHITECTURE.md."""

from __future__ import annotations

from docs_pictures.drawing import Drawing, sequence


def parts() -> str:
    """The packages, and which imports which."""
    d = Drawing(760, 640, "The packages; imports follow the arrows")
    d.box(290, 8, 180, 52, "cli/reput_cli", "the command reput")
    d.box(8, 110, 210, 72, "pipeline/reput_pipeline", "Spark source, sink, jobs")
    d.box(8, 270, 210, 72, "client/reput_client", "producers, consumers, admin", kind="main")
    d.box(8, 434, 210, 52, "proxy/reput_proxy", "RocketMQ 5's gRPC service")
    d.frame(270, 100, 482, 428, "broker/reput_broker")
    rows = (
        (132, "server", "listener, connections, handling of requests"),
        (212, "processors and features", "send, delay, transactions, retry, POP, reply, staging, ha"),
        (292, "core", "what a tenure is made of"),
        (372, "put, pull, groups, tables, namesrv", "the log's order, its waiters, its settings"),
        (452, "store", "CommitLog, ConsumeQueues, index; no event loop, no sockets"),
    )
    for y, name, text in rows:
        d.box(300, y, 422, 56, name, text, kind="main" if name == "store" else "box")
    for y, _, _ in rows[1:]:
        d.arrow((511, y - 24), (511, y - 2))
    d.box(190, 566, 380, 66, "protocol/reput_protocol", "bytes and values: frames, headers, records", kind="main")
    d.arrow((511, 508), (511, 564))
    d.arrow((170, 342), (170, 388), (232, 388), (232, 564))
    d.arrow((103, 182), (103, 268))
    d.arrow((103, 434), (103, 344))
    d.arrow((218, 146), (298, 476), dashed=True)
    d.arrow((290, 34), (103, 34), (103, 108), dashed=True)
    d.arrow((380, 60), (380, 98), dashed=True)
    d.arrow((290, 46), (252, 46), (252, 306), (220, 306), dashed=True)
    d.arrow((252, 306), (252, 460), (220, 460), dashed=True)
    return d.svg()


def way() -> str:
    """The calls from a send to the commit of what was consumed."""
    return sequence(
        "The way of a message from its producer to its consumer",
        (
            ("Producer",),
            ("connection", "server"),
            ("appender", "put"),
            ("CommitLog", "store"),
            ("Reput", "MessageService"),
            ("queues, keys", "store"),
            ("long polling", "pull"),
            ("Consumer",),
        ),
        (
            (0, 1, "frame of records"),
            (1, 2, "the puts of one read"),
            (2, 3, "append, put lock"),
            (3, 0, "answer: page_cache now, flushed after the sync"),
            (4, 3, "read records"),
            (4, 5, "entries, keys"),
            (4, 6, "new messages in these queues"),
            (7, 6, "a waiting pull"),
            (6, 7, "records"),
            (7, 1, "commit of the offset"),
        ),
        gap=128,
    )
