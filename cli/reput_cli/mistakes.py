"""What a line that is refused was probably meant to be.

The words that people bring along from Kafka, RocketMQ's `mqadmin`, Redis, kubectl and others are looked up in tables;
for the others the nearest name counts. A line is corrected until it can be parsed. It is only shown, never run: the
guess may be wrong.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

import click

from reput_cli.examples import EXAMPLES
from reput_cli.line import ALIASES, UnknownCommand, name_of, ordered
from reput_cli.options import every_shared_option

_CORRECTIONS_MAX = 6
_COMMANDS: Final = {
    "send": "produce", "publish": "produce", "pub": "produce", "write": "produce", "put": "produce", "xadd": "produce",
    "subscribe": "consume", "sub": "consume", "read": "consume", "receive": "consume", "tail": "consume",
    "cat": "consume", "listen": "consume", "poll": "consume", "xread": "consume",
    "start": "serve", "run": "serve", "server": "serve", "daemon": "serve", "up": "serve", "standalone": "dev",
    "status": "broker status", "info": "broker status", "stats": "broker status", "drain": "broker drain",
    "brokers": "cluster status", "nodes": "cluster status", "members": "cluster status", "ping": "health",
    "check": "doctor", "diagnose": "doctor", "monitor": "top", "watch": "top", "htop": "top",
    "queue": "topic", "queues": "topic", "partition": "topic", "partitions": "topic", "stream": "topic",
    "streams": "topic", "subject": "topic", "consumer": "group", "consumers": "group", "consumer-group": "group",
    "consumer-groups": "group", "consumergroup": "group", "subscription": "group", "offsets": "group",
    "lag": "group list",
    "msg": "message", "dead-letter": "dlq", "dead-letters": "dlq", "deadletter": "dlq", "timer": "delay",
    "timers": "delay", "delayed": "delay", "cron": "schedule", "job": "pipeline", "jobs": "pipeline",
    "connections": "client list", "producers": "client", "options": "config show",
    "settings": "config show",
    "permission": "acl", "permissions": "acl", "rights": "acl", "profile": "context", "profiles": "context",
    "login": "context add", "connect": "context add", "completion": "generate completion", "perf": "bench",
    "benchmark": "bench", "snapshot": "store snapshot", "backup": "store snapshot", "verify": "store verify",
    "repair": "store repair", "dump": "store dump", "nameserver": "namesrv", "name-server": "namesrv",
    # mqadmin's
    "topiclist": "topic list", "updatetopic": "topic create", "deletetopic": "topic delete",
    "topicstatus": "topic describe", "topicroute": "topic route", "statsall": "top", "clusterlist": "cluster status",
    "brokerstatus": "broker status", "consumerprogress": "group describe", "consumerconnection": "group members",
    "producerconnection": "client list", "updatesubgroup": "group create", "deletesubgroup": "group delete",
    "resetoffsetbytime": "group reset", "skipaccumulatedmessage": "group skip", "clonegroupoffset": "group clone",
    "querymsgbyid": "message get", "querymsgbykey": "message find", "querymsgbyuniquekey": "message find",
    "querymsgbyoffset": "consume", "printmsg": "consume", "consumemessage": "consume", "sendmessage": "produce",
    "getbrokerconfig": "config show", "updatebrokerconfig": "config set", "createuser": "user create",
    "createacl": "acl allow", "listacl": "acl list", "listuser": "user list",
}  # fmt: skip
"""Of the root; `queue list` is `topic list`."""
_VERBS: Final = {
    "show": ("describe", "show", "get", "status", "list"), "get": ("describe", "show", "list"),
    "info": ("describe", "status", "show"),
    "inspect": ("describe", "peek", "show"), "status": ("status", "describe"), "stats": ("status", "describe"),
    "stat": ("status", "describe"), "lag": ("describe",), "progress": ("describe",), "offsets": ("describe",),
    "describe": ("describe", "show", "status"), "desc": ("describe", "show", "status"),
    "add": ("create", "add", "allow"), "new": ("create", "add"), "make": ("create",), "create": ("create", "add"),
    "register": ("create", "add"), "grant": ("allow",), "revoke": ("remove", "deny"),
    "update": ("alter", "set"), "set": ("alter", "set", "use"), "modify": ("alter", "set"), "change": ("alter", "set"),
    "edit": ("alter", "set"), "resize": ("alter",), "remove": ("delete", "remove", "cancel", "purge"),
    "del": ("delete", "remove"), "delete": ("delete", "remove", "cancel", "purge"), "destroy": ("delete", "remove"),
    "drop": ("delete", "remove"), "rm": ("delete", "remove", "cancel"), "ls": ("list",), "all": ("list",),
    "ids": ("list",),
    "search": ("find", "list"), "query": ("find",), "view": ("get", "describe", "peek"),
    "print": ("get", "peek", "dump"),
    "retry": ("replay",), "resend": ("replay",), "redrive": ("replay",), "requeue": ("replay",), "clear": ("purge",),
    "stop": ("pause", "drain"), "start": ("resume",), "trigger": ("run",), "fire": ("run",), "switch": ("use",),
    "rewind": ("reset",), "seek": ("reset",), "reset-offsets": ("reset",), "copy": ("clone",), "sync": ("flush",),
    "failover": ("promote",), "check": ("verify", "check"), "fix": ("repair",), "routes": ("route",),
    "clients": ("members",), "consumers": ("members",), "connections": ("members", "list"), "nodes": ("status",),
}  # fmt: skip
"""Of a group: for the first of these that it has."""
_OPTIONS: Final = {
    "--msgs": ("--messages", "--num-messages", "--count", "--num-records", "--n", "-n"),
    "--queues": ("--partitions", "--num-partitions", "--partition-count", "--queue-count", "--num-queues",
                 "--shards", "-r", "-w",
                 "--read-queues", "--write-queues", "--readqueuenums", "--writequeuenums", "--queue",
                 "--partition", "-p"),
    "--queue": ("--partition", "--queue-id", "--queues", "-i"),
    "--server": ("--bootstrap-server", "--bootstrap-servers", "--bootstrap", "--broker-list", "--brokers",
                 "--broker", "--namesrv",
                 "--namesrvaddr", "--namesrv-addr", "--name-server", "--nameserver", "--address", "--addr",
                 "--endpoint", "--endpoints",
                 "--url", "--host", "--hosts", "--servers", "--broker-addr", "--brokeraddr", "-n", "-b", "-s", "-H"),
    "--json": ("--as-json", "--to-json", "-j", "--pretty"),
    "--output": ("--format", "--form", "--out", "--style"),
    "--count": ("--limit", "--max-messages", "--max", "--num", "--number", "--messages", "--num-messages",
                 "--msgs", "--size", "--top", "-c", "-l"),
    "--size": ("--record-size", "--message-size", "--body-size", "--bytes", "-s"),
    "--rate": ("--throughput", "--qps", "--tps"),
    "--from": ("--offset", "--start", "--begin", "--since", "--start-offset", "--from-offset", "--from-time",
                 "--position", "--reset"),
    "--from earliest": ("--from-beginning", "--earliest", "--beginning", "--from-start", "--from-earliest"),
    "--from latest": ("--latest", "--from-end", "--from-latest", "--follow", "--tail", "-F"),
    "--to": ("--to-offset", "--to-datetime", "--to-time", "--offset", "--time", "--timestamp", "--at", "--when",
                 "-s", "--position"),
    "--to earliest": ("--to-earliest", "--earliest", "--from-beginning"),
    "--to latest": ("--to-latest", "--latest"),
    "--shift": ("--shift-by", "--by"),
    "--end": ("--to-end", "--exit", "--no-follow", "--until-end", "--once"),
    "--group": ("--consumer-group", "--group-id", "--groupid", "--groupname", "--group-name", "--consumer", "-G"),
    "--topic": ("--topics", "--topic-name", "--topicname", "--subject", "--stream"),
    "--key": ("--keys", "--msg-key", "--message-key"),
    "--tag": ("--tags", "--filter", "--subexpression"),
    "--sql": ("--filter", "--where", "--selector"),
    "--property": ("--header", "--headers", "--properties", "--prop", "--attribute"),
    "--file": ("--input", "--from-file", "--body-file", "--path"),
    "--delay": ("--delay-time", "--after", "--in"),
    "--ack": ("--acks", "--request-required-acks"),
    "--inflight": ("--in-flight", "--concurrency", "--pipeline"),
    "--clients": ("--producers", "--threads", "--processes", "--consumers"),
    "--type": ("--message-type", "--kind"),
    "--permission": ("--perm", "--permissions", "--rights"),
    "--retry-max": ("--retries", "--max-retries", "--retry-max-times", "--retry"),
    "--user": ("--username", "--login", "--access-key", "-u", "-U"),
    "--secret-file": ("--password", "--password-file", "--secret", "--secret-key", "--pass"),
    "--tls": ("--ssl", "--secure"),
    "--tls-ca": ("--ca", "--cafile", "--ca-cert", "--cacert"),
    "--yes": ("--force", "--no-confirm", "--assume-yes", "--confirm", "--execute", "-f"),
    "--dry-run": ("--dryrun", "--preview", "--noop", "--check", "--plan"),
    "--all": ("--system", "--include-system", "--internal", "-A"),
    "--data-dir": ("--data", "--dir", "--directory", "--store", "--storage", "--path", "-d", "-D", "--log-dir"),
    "--config": ("--conf", "--config-file", "--configuration", "--settings"),
    "--port": ("--listen", "--listen-port", "-p", "-P"),
    "--http-port": ("--http", "--metrics-port", "--admin-port", "--console-port", "--web-port"),
    "--host": ("--bind", "--listen-address", "--address", "--ip"),
    "--once": ("--one", "--batch", "-b", "--no-follow"),
    "--sort": ("--order", "--order-by", "--sort-by", "--by", "-s"),
    "--interval": ("--every", "--refresh", "--delay", "-d"),
    "--verbose": ("--debug", "--trace", "--traceback"),
    "--quiet": ("--silent",),
    "--no-color": ("--no-colour", "--nocolor", "--plain"),
    "--help": ("--usage", "-?", "/?"),
}  # fmt: skip
"""Options, and the names that people try for them. A command is offered the first one that it has."""
_ARGUMENTS: Final = {
    "topic": ("--topic", "--topic-name", "--name", "-t", "-topic"),
    "group": ("--group", "--consumer-group", "--group-id", "--name", "-g", "--consumer"),
    "body": ("--value", "--message", "--msg", "--body", "--payload", "--data", "--text", "-m", "-b"),
    "name": ("--name", "--user", "--username", "-u", "--id"),
    "message_id": ("--id", "--message-id", "--msg-id", "--msgid", "-i"),
    "dir": ("--data-dir", "--dir", "--path", "--store", "-d"),
    "directory": ("--data-dir", "--dir", "--path", "--store", "-d"),
    "address": ("--address", "--server", "--url", "--endpoint"),
    "cron": ("--cron", "--expression", "--schedule"),
}
"""Arguments, and the options that people try for them."""
_NOT_THERE: Final = {
    "--replication-factor": "the replicas of a broker have all its topics: docs/cluster.md",
    "--replicas": "the replicas of a broker have all its topics: docs/cluster.md",
    "--retention": "messages expire by store.file_reserved_time, an option of the whole broker (reput config show)",
    "--cluster": "a command serves the cluster of the broker at --server",
    "-c": "a command serves the cluster of the broker at --server",
}
"""Options that have no counterpart, and what there is instead."""
_UNEXPECTED = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


class Mistake(click.UsageError):
    """A line that cannot be parsed.

    Attributes:
        remedy: the line that was probably meant; None if there is no guess.
        example: of the command, if there is no guess.
        help: the command that prints the help.
    """

    def __init__(self, message: str, context: click.Context | None, remedy: str | None) -> None:
        super().__init__(message, context)
        self.remedy = remedy
        path = "" if context is None else context.command_path.partition(" ")[2]
        lines = EXAMPLES.get(path)
        self.example = f"reput {lines[0]}" if lines is not None and remedy is None else None
        self.help = f"reput help {path}".strip()


def unknown_command(
    root: click.Group, context: click.Context, path: Sequence[str], rest: Sequence[str]
) -> click.UsageError:
    """Return the refusal of `rest[0]`, which is not a command of the group at `path`."""
    group, own = _at(root, context, path)
    guesses = [[*path, *guess] for guess in _guessed_commands(group, own, path, rest)]
    if guesses and len(guesses[0]) == 1:
        noun = group.get_command(own, guesses[0][0])
        if isinstance(noun, click.Group) and "list" in noun.list_commands(own):
            guesses[0].append("list")
    message = f"No such command {rest[0]!r}."
    if guesses:
        message += f" Did you mean {_named(root, context, guesses[0], path)!r}?"
    # Options are moved by `ordered`, and what is wrong in the rest of the line is corrected too.
    remedy = _corrected(root, context, guesses[0]) if guesses else None
    return Mistake(message, own, remedy)


def explained(root: click.Group, error: click.UsageError, words: Sequence[str]) -> click.UsageError:
    """Return the refusal of a line with what was probably meant.

    Args:
        words: the line, as `ordered` returns it.
    """
    own = error.ctx
    if own is None or isinstance(error, (Mistake, click.exceptions.NoArgsIsHelpError)):
        return error
    guess = _guess(error, words)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        message = f"No such option {error.option_name!r}."
        instead = _NOT_THERE.get(error.option_name)
        near = _guessed_option(error)
        if near is not None:
            message += f" Did you mean {near!r}?"
        elif instead is not None:
            message = f"No such option {error.option_name!r}: {instead}."
    return Mistake(message, own, None if guess is None else _corrected(root, own.find_root(), guess))


# -- commands ----------------------------------------------------------------------------------------------------------


def _guessed_commands(
    group: click.Group, own: click.Context, path: Sequence[str], rest: Sequence[str]
) -> Iterator[list[str]]:
    """Yield lines, without the path of the group, that may have been meant, the best guess first."""
    word, tail = rest[0], list(rest[1:])
    names = group.list_commands(own)
    lower = word.lower().lstrip("-")
    for name in (lower, lower.removesuffix("s"), lower.removesuffix("es"), lower.replace("_", "-")):
        if name in names:
            yield [name, *tail]
    if not path:
        known = _COMMANDS.get(lower)
        if known is not None:
            words = known.split()
            of_known = group.get_command(own, words[0])
            names_one = bool(tail) and not tail[0].startswith("-")
            if words[1:] == ["list"] and names_one and isinstance(of_known, click.Group):
                words[1:] = ["describe"] if "describe" in of_known.list_commands(own) else ["list"]
            yield [*words, *tail]
        if tail and (lower in _VERBS or lower in ("list", "alter", "purge", "replay")):
            noun = tail[0].lower()
            for name in (noun, noun.removesuffix("s"), *_COMMANDS.get(noun, "").split()[:1]):
                of_noun = group.get_command(own, name) if name in names else None
                verb = _verb(of_noun, own, lower) if isinstance(of_noun, click.Group) else None
                if verb is not None:
                    yield [name, verb, *tail[1:]]
    else:
        verb = _verb(group, own, lower)
        if verb is not None:
            yield [verb, *tail]
    near = get_close_matches(lower, names, n=1)
    if near:
        yield [near[0], *tail]
    describe = group.get_command(own, "describe") if path and not word.startswith("-") else None
    if describe is not None and isinstance(describe.params[0], click.Argument):
        yield ["describe", word, *tail]


def _verb(group: click.Group, own: click.Context, word: str) -> str | None:
    """Return the command of a group that a word stands for."""
    names = group.list_commands(own)
    candidates = (word, *ALIASES.get(word, ()), *_VERBS.get(word, ()))
    return next((name for name in candidates if name in names), None)


def _named(root: click.Group, context: click.Context, guess: Sequence[str], path: Sequence[str]) -> str:
    """Return the words of a guess that are commands, without those that the user has written."""
    command: click.Command | None = root
    named = []
    for word in guess:
        if not isinstance(command, click.Group):
            break
        name = name_of(command, context, word)
        if name is None:
            break
        named.append(word)
        command = command.get_command(context, name)
    return " ".join(named[len(path) :]) or " ".join(guess[len(path) : len(path) + 1])


def _at(root: click.Group, context: click.Context, path: Sequence[str]) -> tuple[click.Group, click.Context]:
    group, own = root, context
    for name in path:
        found = group.get_command(own, name)
        assert isinstance(found, click.Group)
        group, own = found, click.Context(found, info_name=name, parent=own)
    return group, own


# -- options and arguments ---------------------------------------------------------------------------------------------


def _guess(error: click.UsageError, words: Sequence[str]) -> list[str] | None:
    """Return the line with one mistake corrected."""
    own = error.ctx
    assert own is not None
    if isinstance(error, click.NoSuchOption):
        return _with_other_option(error, words)
    if isinstance(error, click.BadParameter):
        return _with_other_value(error, words)
    unexpected = _UNEXPECTED.match(error.message)
    if unexpected is not None and not isinstance(own.command, click.Group):
        return _with_fewer_arguments(own.command, unexpected[1].split(), words)
    return None


def _options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command; those that may precede the command of a group."""
    if isinstance(command, click.Group):
        return list(every_shared_option())
    return [param for param in command.params if isinstance(param, click.Option)]


def _option_names(command: click.Command) -> list[str]:
    return [name for option in _options_of(command) for name in option.opts]


def _guessed_option(error: click.NoSuchOption) -> str | None:
    """Return what was probably meant: options with their values, or an argument in capitals."""
    own, wrong = error.ctx, error.option_name
    assert own is not None
    command = own.command
    verb = _verb(command, own, wrong.lstrip("-")) if isinstance(command, click.Group) else None
    if verb is not None:
        return verb
    names = _option_names(command)
    if "-" + wrong in names:  # -topic
        return "-" + wrong
    for param in command.params:
        if isinstance(param, click.Argument) and (
            wrong.lower() in _ARGUMENTS.get(str(param.name), ())
            or wrong.lower() == f"--{str(param.name).replace('_', '-')}"
        ):
            return param.human_readable_name
    for option, tried in _OPTIONS.items():
        name = option.partition(" ")[0]
        if (wrong in tried or wrong.lower() in tried) and name in names:
            return option
    if wrong in _NOT_THERE:
        return None
    near = get_close_matches(wrong, [name for name in names if name.startswith("--")], n=1, cutoff=0.65)
    return near[0] if near else None


def _with_other_option(error: click.NoSuchOption, words: Sequence[str]) -> list[str] | None:
    wrong, near = error.option_name, _guessed_option(error)
    place = next((n for n, word in enumerate(words) if word.partition("=")[0] == wrong), None)
    if place is None:  # -help is read as -h -e -l -p; -n5 as -n 5
        place = next((n for n, word in enumerate(words) if re.fullmatch(r"-[a-zA-Z-]{3,}", word)), None)
        own = error.ctx
        assert own is not None
        if place is None or "-" + words[place] not in [*_option_names(own.command), "--help"]:
            return None
        return [*words[:place], "-" + words[place], *words[place + 1 :]]
    before, after = list(words[:place]), list(words[place + 1 :])
    _, equals, value = words[place].partition("=")
    if near is None:
        if wrong not in _NOT_THERE:
            return None
        if not equals and after and not after[0].startswith("-"):
            del after[0]
        return [*before, *after]
    own = error.ctx
    assert own is not None
    if isinstance(own.command, click.Group) and not near.startswith("-"):
        return [*before, near, *after]
    is_argument = not near.startswith("-")
    chosen = [] if is_argument else near.split()
    if equals:
        chosen.append(value)
    elif is_argument and not after:
        return None
    option = next((p for p in _options_of(own.command) if chosen and chosen[0] in p.opts), None)
    if len(near.split()) == 1 and isinstance(option, click.Option):
        is_flag = option.is_flag or option.count
        given = bool(after) and (not after[0].startswith("-") or after[0].lstrip("-").isdigit())
        if is_flag and given and wrong in _OPTIONS["--secret-file"]:
            return None
        if near == "--output" and after and "json" in after[0]:
            return (
                [*before, "--json", *after[1:]]
                if "--json" in _option_names(own.command)
                else [*before, "-O", "json", *after[1:]]
            )
        if not is_flag and not given and not equals:
            return None
    if near == "--secret-file":
        return [*before, "--secret-file", "FILE", *(after if equals else after[1:])]  # the secret is not repeated
    return [*before, *chosen, *after]


def _with_other_value(error: click.BadParameter, words: Sequence[str]) -> list[str] | None:
    """Return the line with a value that is near one of the choices, or a time with its @, or a time with its unit."""
    param = error.param
    if not isinstance(param, click.Option):
        return None
    for place, word in enumerate(words[:-1]):
        if word in param.opts:
            value, start, end = words[place + 1], list(words[: place + 1]), list(words[place + 2 :])
            break
    else:
        return None
    candidates = [f"@{value}", f"{value}s", value.upper(), value.lower()]
    if isinstance(param.type, click.Choice):
        candidates += get_close_matches(value.lower(), [str(each) for each in param.type.choices], n=1, cutoff=0.5)
    for candidate in candidates:
        try:
            param.type.convert(candidate, param, error.ctx)
        except (click.BadParameter, ValueError):
            continue
        return [*start, candidate, *end]
    return None


def _with_fewer_arguments(command: click.Command, extra: Sequence[str], words: Sequence[str]) -> list[str] | None:
    """Return the line with words that belong together in quotes, or with the option that was meant by -q."""
    if "-q" in words and words[words.index("-q") + 1 : words.index("-q") + 2] == list(extra):
        queues = next((name for name in ("--queues", "--queue") if name in _option_names(command)), None)
        if queues is not None and extra[0].isdigit():
            return [queues if word == "-q" else word for word in words]
    last = [param for param in command.params if isinstance(param, click.Argument)][-1:]
    if last and last[0].name == "body" and words[-len(extra) :] == list(extra):
        return [*words[: -len(extra) - 1], " ".join(words[-len(extra) - 1 :])]
    return None


# -- whole lines -------------------------------------------------------------------------------------------------------


def _corrected(root: click.Group, context: click.Context, words: Sequence[str]) -> str | None:
    """Return the line once nothing more is wrong in it, or as far as it can be corrected, for a shell."""
    words = list(words)
    for _ in range(_CORRECTIONS_MAX):
        if {"-h", "--help", "--version"} & set(words):
            break
        try:
            words = ordered(root, context, words)
            _parse(root, context, words)
        except UnknownCommand as unknown:
            meant = unknown_command(root, context, unknown.path, unknown.rest)
            if isinstance(meant, Mistake) and meant.remedy is not None:
                return meant.remedy
            break
        except click.UsageError as error:
            if isinstance(error, Mistake) and error.remedy is not None:
                return error.remedy
            better = None if error.ctx is None else _guess(error, words)
            if better is None or better == words:
                break
            words = better
        else:
            break
    return shlex.join(["reput", *words])


def _parse(root: click.Group, context: click.Context, words: Sequence[str]) -> None:
    command: click.Command = root
    own, rest = context, list(words)
    while isinstance(command, click.Group):
        if not rest:
            return
        found = command.get_command(own, rest[0])
        if found is None:
            command.parse_args(click.Context(command, info_name=own.info_name, parent=own.parent), rest)
            return
        if isinstance(found, click.Group):
            own = click.Context(found, info_name=rest.pop(0), parent=own)
        else:
            found.make_context(rest[0], rest[1:], parent=own)
            return
        command = found
