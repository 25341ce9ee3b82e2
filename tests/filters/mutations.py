"""Expressions that are nearly valid: tokens left out, doubled, swapped or replaced."""

from __future__ import annotations

import re
from random import Random

_TOKEN = re.compile(r"'(?:''|[^'])*'|[A-Za-z_$][\w$]*|[0-9.]+(?:[eE][+-]?[0-9]+)?[lL]?|<>|<=|>=|\S")
_OTHERS = (
    *("a", "b", "5", "-1", "2.5", "'x'", "''", "TRUE", "NULL", "AND", "OR", "NOT", "IN", "IS", "BETWEEN", "CONTAINS"),
    *("(", ")", ",", "=", "<>", "<", ">=", "+", "-", "*", "/", ";", '"', "'", "!", "#"),
    *("007", "1e", "a.b", "é", "==", "--", "/*", "*/", "\u00a0", "\v", "\0"),
)  # fmt: skip


def mutated(rng: Random, expression: str) -> str:
    """The expression with one to three of its tokens changed, and a line break, which ends comments everywhere."""
    tokens = _TOKEN.findall(expression)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(tokens) + 1)
        choice = rng.random()
        if choice < 0.3:
            del tokens[at : at + 1]
        elif choice < 0.6:
            tokens.insert(at, rng.choice(_OTHERS))
        elif choice < 0.8:
            tokens[at : at + 1] = [rng.choice(_OTHERS)]
        else:
            tokens[at : at + 2] = tokens[at : at + 2][::-1]
    return rng.choice((" ", " ", "\n", "")).join(tokens) + "\n"
