"""Examples in the help of every command; the tests parse each of them."""

from __future__ import annotations

from typing import Final

import click

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "serve": ("serve --data-dir /var/lib/reput", "serve -c conf/broker.toml --port 20911"),
    "namesrv": ("namesrv --data-dir /var/lib/reput-names",),
    "proxy": ("proxy --port 8081 --server broker1:10911",),
    "dev": ("dev", "dev --port 0"),
    "produce": (
        "produce orders 'one message' --tag paid --key o-42",
        "produce orders --file order.json --delay 5m",
        "produce orders --json < messages.jsonl",
    ),
    "request": ("request prices 'what is o-42?' --timeout 10s",),
    "consume": (
        "consume orders --from latest",
        "consume orders -n 10 --json",
        "consume orders --group billing --tag 'paid || refunded'",
        "consume orders --from @-15m --end -f '%k %v'",
    ),
    "top": ("top", "top --sort lag", "top --once --json"),
    "topic": ("topic list", "topic create orders --queues 8"),
    "topic list": ("topic list", "topic list 'order*' --sort messages", "topic list --all --json"),
    "topic describe": ("topic describe orders",),
    "topic create": ("topic create orders --queues 8", "topic create tasks --type FIFO --permission rw"),
    "topic alter": ("topic alter orders --queues 16", "topic alter orders --permission r"),
    "topic delete": ("topic delete orders --dry-run", "topic delete orders --yes"),
    "topic route": ("topic route orders",),
    "group": ("group list", "group describe billing"),
    "group list": ("group list", "group list --json"),
    "group describe": ("group describe billing", "group describe billing --topic orders"),
    "group members": ("group members billing",),
    "group create": ("group create billing --retry-max 5",),
    "group alter": ("group alter billing --disable", "group alter billing --retry-max 5"),
    "group delete": ("group delete billing --dry-run",),
    "group reset": ("group reset billing orders --to @-1h --dry-run", "group reset billing orders --to earliest"),
    "group skip": ("group skip billing orders",),
    "group clone": ("group clone billing billing-test --topic orders",),
    "message": ("message find orders o-42",),
    "message get": ("message get 7F00000100002A9F0000000000000000",),
    "message find": ("message find orders o-42", "message find orders --between -1h -5m"),
    "message history": ("message history C0000202085C941071C468A2C53D0000",),
    "transaction": ("transaction list",),
    "transaction list": ("transaction list --topic orders",),
    "transaction commit": ("transaction commit orders C0000202085C941071C468A2C53D0000 --dry-run",),
    "transaction rollback": ("transaction rollback orders C0000202085C941071C468A2C53D0000",),
    "dlq": ("dlq list", "dlq peek billing"),
    "dlq list": ("dlq list", "dlq list billing"),
    "dlq peek": ("dlq peek billing -n 5",),
    "dlq replay": ("dlq replay billing --dry-run", "dlq replay billing --rate 100/s"),
    "dlq purge": ("dlq purge billing --dry-run",),
    "delay": ("delay list --topic orders",),
    "delay list": ("delay list --topic orders -n 20",),
    "delay cancel": ("delay cancel --topic orders --key o-42",),
    "schedule": ("schedule list",),
    "schedule create": ("schedule create nightly '0 3 * * *' reports 'run' --time-zone Europe/Berlin",),
    "schedule list": ("schedule list",),
    "schedule describe": ("schedule describe nightly",),
    "schedule delete": ("schedule delete nightly",),
    "schedule pause": ("schedule pause nightly",),
    "schedule resume": ("schedule resume nightly",),
    "schedule run": ("schedule run nightly",),
    "cluster": ("cluster status",),
    "cluster status": ("cluster status --json",),
    "broker": ("broker status",),
    "broker status": ("broker status", "broker status --json"),
    "broker drain": ("broker drain", "broker drain --off"),
    "broker readonly": ("broker readonly", "broker readonly --off"),
    "broker flush": ("broker flush",),
    "broker promote": ("broker promote 1",),
    "client": ("client list",),
    "client disconnect": ("client disconnect 127.0.0.1:43782 --dry-run",),
    "client list": ("client list --role consumer",),
    "config": ("config show --changed",),
    "config show": ("config show 'store.*'", "config show --changed --json"),
    "config check": ("config check -c conf/broker.toml --show",),
    "config set": ("config set store.file_reserved_time=72h",),
    "config reload": ("config reload",),
    "store": ("store verify /var/lib/reput",),
    "store verify": ("store verify /var/lib/reput",),
    "store dump": ("store dump /var/lib/reput --log --count 10",),
    "store repair": ("store repair /var/lib/reput",),
    "store rebuild": ("store rebuild /var/lib/reput --queues --index",),
    "store export": ("store export /var/lib/reput --topic orders -o orders.jsonl",),
    "store snapshot": ("store snapshot /var/lib/reput --to /backup/reput",),
    "doctor": ("doctor", "doctor group billing"),
    "doctor broker": ("doctor broker --server broker1",),
    "doctor group": ("doctor group billing",),
    "doctor cluster": ("doctor cluster",),
    "doctor proxy": ("doctor proxy 127.0.0.1:8081",),
    "doctor store": ("doctor store /var/lib/reput",),
    "doctor container": ("doctor container",),
    "health": ("health", "health --url http://127.0.0.1:10913"),
    "user": ("user list",),
    "user list": ("user list",),
    "user create": ("user create alice --generate alice.secret", "user create root --admin --data-dir /var/lib/reput"),
    "user alter": ("user alter alice --disable",),
    "user delete": ("user delete alice",),
    "acl": ("acl list",),
    "acl list": ("acl list alice",),
    "acl allow": ("acl allow alice write topic:orders", "acl allow alice read topic:orders group:billing"),
    "acl deny": ("acl deny alice write topic:orders",),
    "acl remove": ("acl remove alice topic:orders",),
    "context": ("context list",),
    "context add": ("context add prod --server broker1:10911",),
    "context use": ("context use prod",),
    "context list": ("context list",),
    "context show": ("context show prod",),
    "context remove": ("context remove prod",),
    "generate": ("generate config > broker.toml",),
    "generate alerts": ("generate alerts > rules.yml",),
    "generate completion": ("generate completion bash",),
    "generate compose": ("generate compose --to reput",),
    "generate config": ("generate config > broker.toml",),
    "generate grafana": ("generate grafana > reput.json",),
    "generate k8s": ("generate k8s > reput.yaml",),
    "generate k8s-tls": ("generate k8s-tls > tls.yaml",),
    "generate systemd": ("generate systemd > reput.service",),
    "pipeline": ("pipeline archive --help",),
    "bench": ("bench produce --msgs 10000",),
    "bench produce": ("bench produce --msgs 100000 --inflight 64", "bench produce --ack page_cache --batch 16"),
    "bench consume": ("bench consume --verify",),
    "bench pubsub": ("bench pubsub --rate 1000 --duration 10s",),
    "help": ("help topic create", "help connection"),
    "version": ("version --json",),
}
"""Lines without `reput`, by the path of the command."""


def epilog(path: str) -> str | None:
    """Return the end of the help of the command at a path such as `topic list`; None without examples."""
    lines = EXAMPLES.get(path)
    if lines is None:
        return None
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  reput {one}" for one in lines)])


def add_examples(command: click.Command, path: str) -> None:
    """Add the examples to the help of a command, and of those of a group."""
    command.epilog = epilog(path)
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            add_examples(each, f"{path} {name}")
