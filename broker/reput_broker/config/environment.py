"""Environment variables with the prefix of the project, besides those of the options."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "REPUT_"
FILE_SUFFIX: Final = "_FILE"
"""The variable of an option with this suffix names a file that holds the value."""

OTHER_VARIABLES: Final = {
    "REPUT_SERVER": "the broker that the commands connect to",
    "REPUT_USER": "the user that clients and commands sign their requests as",
    "REPUT_SECRET": "the secret of that user",
    "REPUT_SECRET_FILE": "a file with the secret of that user",
    "REPUT_ROCKETMQ_SIGNATURES": "`false`: clients and commands use no server that supports only RocketMQ's signatures",
    "REPUT_REGISTRY_USER": "the user of the schema registry of `reput consume --decode` and `console.decoders`",
    "REPUT_REGISTRY_SECRET_FILE": "a file with the secret of that user",
    "REPUT_CONTEXT": "the context of `reput context` that the commands use",
    "REPUT_OFFSETS_DIR": "where a client that broadcasts keeps its offsets",
    "REPUT_KERNEL": "whether an installation compiles the kernel: `compiled` or `interpreted`",
    "REPUT_KERNEL_CFLAGS": "more options for the compiler of the kernel",
    "REPUT_BUILD_COMMIT": "the label `commit` of reput_build_info, set when an image is built",
}

_SERVICE_NAME = re.compile(
    r"REPUT_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def variable_of(key: str) -> str:
    """Return the environment variable that sets the option `key`."""
    return PREFIX + key.replace(".", "__").upper()


def is_service_link(name: str, value: str) -> bool:
    """Tell whether Kubernetes has set a variable, as it does in every container for a service named `reput...`.

    For a service named `reput`, the variable REPUT_PORT has the name of an option and holds an address.
    """
    return bool(_SERVICE_NAME.fullmatch(name)) or (name.endswith("PORT") and bool(_SERVICE_ADDRESS.match(value)))


def own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the prefix of the project, without those of Kubernetes."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and not is_service_link(name, value)
    }


def unknown_variables(environ: Mapping[str, str], of_options: Collection[str]) -> dict[str, str | None]:
    """Return the variables with the prefix that are not used, each with the known one it resembles.

    Args:
        environ: the environment.
        of_options: the variables of options.
    """
    known = {name.removeprefix(PREFIX): name for name in (*of_options, *OTHER_VARIABLES)}
    unknown = {}
    for name in own_variables(environ):
        rest = name.removeprefix(PREFIX)
        if rest in known or (name.endswith(FILE_SUFFIX) and name.removesuffix(FILE_SUFFIX) in of_options):
            continue
        near = get_close_matches(rest, known, n=1, cutoff=0.7)
        unknown[name] = known[near[0]] if near else None
    return unknown
