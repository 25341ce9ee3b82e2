"""A compiled filter expression, the grammar, and the compiler.

The compiler takes an expression part by part as the parser recognises them (RocketMQ: SelectorParser.jj), and rejects
what RocketMQ's does (ComparisonExpression, ConstantExpression); docs/filters.md has the differences. It limits what
evaluating an untrusted expression may cost. Parsing takes time and memory proportional to the text, and no recursion.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.sql import conditions
from reput_protocol.filter.sql.conditions import (
    NUMBERS,
    Evaluate,
    Kind,
    Node,
    NotComparable,
    literal_node,
    property_node,
)

if TYPE_CHECKING:
    from lark import Lark, Token, UnexpectedToken

    Texts: TypeAlias = list[bytes]

CHARACTERS_MAX: Final = 8192
"""Length of an expression."""
PARTS_MAX: Final = 500
"""Operands and operations; a list after IN counts as one."""
DEPTH_MAX: Final = 64
"""Nesting; a chain of ANDs or of ORs counts once."""
NAME_CHARACTERS_MAX: Final = 255
"""Length of a property's name."""

_INT_MAX: Final = 0x7FFF_FFFF
_LONG_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_DOUBLE_MAX: Final = 1.7976931348623157e308


def check_size(expression: str) -> None:
    """Raise `FilterSyntaxError` for a blank or too long expression, before it is parsed."""
    if not expression.strip(" \t\n\r\f"):
        raise FilterSyntaxError("the expression is empty; to get every message, use tags and *", 0)
    if len(expression) > CHARACTERS_MAX:
        raise FilterSyntaxError(
            f"the expression has {len(expression)} characters; {CHARACTERS_MAX} are allowed", CHARACTERS_MAX
        )


class ExpressionCompiler:
    """One method for each alternative of the grammar: takes its parts and returns the combined part.

    Stateless. Every method raises FilterSyntaxError if the parts cannot be combined.
    """

    def start(self, parts: list[Node]) -> Node:
        """The whole expression: a condition."""
        return _condition(parts[0])

    def any_of(self, parts: list[Node]) -> Node:
        """`a OR b`; a further OR extends the chain."""
        return _joined("OR", *parts)

    def all_of(self, parts: list[Node]) -> Node:
        """`a AND b`; a further AND extends the chain."""
        return _joined("AND", *parts)

    def equal(self, parts: list[Node]) -> Node:
        """`left = right`."""
        left, right = parts
        for operand in parts:
            if operand.is_literal and operand.value is None:
                _refuse("nothing is equal to NULL; write IS NULL", operand)
        if left.is_literal and left.is_condition and right.is_literal and not right.is_condition:
            _refuse(f"{left.shown()} cannot be compared with {right.shown()}", right)
        return _operation(conditions.equal(left, right), parts)

    def unequal(self, parts: list[Node]) -> Node:
        """`left <> right`: the opposite of `=`."""
        equal = self.equal(parts)
        return _operation(conditions.opposite(equal), [equal])

    def is_null(self, parts: list[Node]) -> Node:
        """`operand IS NULL`."""
        return _operation(conditions.is_null(parts[0], negated=False), parts[:1])

    def is_not_null(self, parts: list[Node]) -> Node:
        """`operand IS NOT NULL`."""
        return _operation(conditions.is_null(parts[0], negated=True), parts[:1])

    def ordered(self, parts: tuple[Node, Token, Node]) -> Node:
        """`left < right`, and with `<=`, `>`, `>=`."""
        left, operator, right = parts
        _check_ordered(left, right)
        return _operation(conditions.ordered(left, right, conditions.ORDER[operator]), (left, right))

    def between(self, parts: list[Node]) -> Node:
        """`operand BETWEEN low AND high`."""
        operand, low, high = parts
        _check_ordered(low, high, operand)
        if low.is_literal and high.is_literal and not conditions.is_in_order(low, high):
            _refuse(f"nothing is between {low.value} and {high.value}; the lower one comes first", low)
        return self._between(parts, negated=False)

    def not_between(self, parts: tuple[Node, Token, Node, Node]) -> Node:
        """`operand NOT BETWEEN low AND high`, whatever the order of the two."""
        operand, _, low, high = parts
        _check_ordered(operand, low, high)
        return self._between([operand, low, high], negated=True)

    def _between(self, parts: list[Node], *, negated: bool) -> Node:
        operand, low, high = parts
        node = _operation(conditions.between(operand, low, high, negated=negated), parts)
        node.lookups += operand.lookups
        return node

    def searched(self, parts: tuple[Node, Token, Token]) -> Node:
        """`operand CONTAINS 'text'`, `STARTSWITH`, `ENDSWITH`."""
        return self._searched(*parts, negated=False)

    def not_searched(self, parts: tuple[Node, Token, Token, Token]) -> Node:
        """`operand NOT CONTAINS 'text'`, `NOT STARTSWITH`, `NOT ENDSWITH`."""
        operand, _, search, wanted = parts
        return self._searched(operand, search, wanted, negated=True)

    def _searched(self, operand: Node, search: Token, wanted: Token, *, negated: bool) -> Node:
        evaluate = conditions.searched(operand, search.upper(), _content(wanted), negated=negated)
        return _operation(evaluate, [operand])

    def texts(self, tokens: list[Token]) -> Texts:
        """The list after IN."""
        return [_content(token) for token in tokens]

    def among(self, parts: tuple[Node, Texts]) -> Node:
        """`property IN ('text', ...)`."""
        return self._among(*parts, negated=False)

    def not_among(self, parts: tuple[Node, Token, Texts]) -> Node:
        """`property NOT IN ('text', ...)`."""
        operand, _, texts = parts
        return self._among(operand, texts, negated=True)

    def _among(self, operand: Node, texts: Texts, *, negated: bool) -> Node:
        if operand.name is None:
            _refuse(f"IN asks about a property, not about {operand.shown()}", operand)
        return _operation(conditions.among(operand, texts, negated=negated), [operand])

    def plus(self, parts: list[Node]) -> Node:
        """`+operand`, which is the operand."""
        return parts[0]

    def minus(self, parts: tuple[Token, Node]) -> Node:
        """`-operand`."""
        sign, operand = parts
        node = _operation(conditions.negative(operand), [operand], Kind.NOTHING)
        node.start = sign.start_pos or 0
        node.is_condition = False
        if operand.is_known and operand.kind in NUMBERS:
            value = -operand.value  # type: ignore[operator]
            node.kind, node.is_known, node.value, node.evaluate = operand.kind, True, value, lambda _: value
        return node

    def opposite(self, parts: tuple[Token, Node]) -> Node:
        """`NOT operand`."""
        word, operand = parts
        operand = _condition(operand)
        node = _operation(conditions.opposite(operand), [operand])
        node.start = word.start_pos or 0
        return node

    def named(self, tokens: list[Token]) -> Node:
        """A property."""
        (token,) = tokens
        node = property_node(str(token), token.start_pos or 0)
        if len(token) > NAME_CHARACTERS_MAX:
            _refuse(f"a name of {len(token)} characters; {NAME_CHARACTERS_MAX} are allowed", node)
        return node

    def text(self, tokens: list[Token]) -> Node:
        """A text in quotes."""
        (token,) = tokens
        return literal_node(Kind.TEXT, _content(token), token.start_pos or 0)

    def whole(self, tokens: list[Token]) -> Node:
        """A whole number: of 32 bits if it fits, else of 64, with or without an L."""
        (token,) = tokens
        value = int(token.rstrip("lL")) if len(token) <= len("9223372036854775807L") else _LONG_MAX + 1
        node = literal_node(Kind.INT if value <= _INT_MAX else Kind.LONG, value, token.start_pos or 0)
        if value > _LONG_MAX:
            _refuse(f"whole numbers end at {_LONG_MAX}; write it with a fraction", node)
        return node

    def decimal(self, tokens: list[Token]) -> Node:
        """A double."""
        (token,) = tokens
        value = float(token)
        node = literal_node(Kind.DOUBLE, value, token.start_pos or 0)
        if value == 0.0:
            _refuse("a number with a fraction must be larger than 0; write 0", node)
        if value > _DOUBLE_MAX:
            _refuse(f"numbers end at {_DOUBLE_MAX}", node)
        return node

    def true(self, tokens: list[Token]) -> Node:
        """TRUE."""
        return literal_node(Kind.BOOLEAN, True, tokens[0].start_pos or 0)

    def false(self, tokens: list[Token]) -> Node:
        """FALSE."""
        return literal_node(Kind.BOOLEAN, False, tokens[0].start_pos or 0)

    def null(self, tokens: list[Token]) -> Node:
        """NULL, which is unknown as a condition."""
        return literal_node(Kind.NOTHING, None, tokens[0].start_pos or 0)


def _operation(evaluate: Evaluate, operands: Sequence[Node], kind: Kind = Kind.BOOLEAN) -> Node:
    node = Node(
        kind,
        evaluate,
        operands[0].start,
        depth=1 + max(operand.depth for operand in operands),
        size=1 + sum(operand.size for operand in operands),
        lookups=sum(operand.lookups for operand in operands),
        is_condition=True,
    )
    _check_bounds(node)
    return node


def _check_bounds(node: Node) -> None:
    if node.depth > DEPTH_MAX:
        _refuse(f"parts are nested more than {DEPTH_MAX} deep", node)
    if node.size > PARTS_MAX:
        _refuse(f"the expression has more than {PARTS_MAX} parts; IN takes many texts as one", node)


def _joined(word: str, left: Node, right: Node) -> Node:
    """Return a chain of conditions as one part, however long, so that evaluating it needs no recursion."""
    left, right = _condition(left), _condition(right)
    if left.joined_by != word:
        row = [left.evaluate, right.evaluate]
        node = _operation(conditions.any_of(row) if word == "OR" else conditions.all_of(row), (left, right))
        node.joined_by, node.row = word, row
        return node
    left.row.append(right.evaluate)
    left.depth = max(left.depth, 1 + right.depth)
    left.size += right.size
    left.lookups += right.lookups
    _check_bounds(left)
    return left


def _condition(part: Node) -> Node:
    if part.is_condition:
        return part
    if part.name is None:
        _refuse(f"{part.shown()} is neither true nor false; compare it with something", part)
    return _operation(conditions.truth(part), [part])


def _check_ordered(*operands: Node) -> None:
    for operand in operands:
        if operand.is_condition or (operand.is_literal and operand.kind not in NUMBERS):
            _refuse(f"{operand.shown()} has no order; only numbers are larger or smaller than others", operand)


def _content(token: Token) -> bytes:
    try:
        return token.encode()[1:-1].replace(b"''", b"'")
    except UnicodeEncodeError as error:
        position = (token.start_pos or 0) + error.start
        raise FilterSyntaxError("half of a character, which no property can hold", position) from None


def _refuse(reason: str, part: Node) -> NoReturn:
    raise FilterSyntaxError(reason, part.start)


GRAMMAR: Final = r"""
start: disjunction

?disjunction: disjunction _OR conjunction              -> any_of
            | conjunction
?conjunction: conjunction _AND equality                -> all_of
            | equality
?equality: equality _EQUAL comparison                  -> equal
         | equality _UNEQUAL comparison                -> unequal
         | equality _IS NULL                           -> is_null
         | equality _IS NOT NULL                       -> is_not_null
         | comparison
?comparison: comparison ORDER unary                    -> ordered
           | comparison SEARCH STRING                  -> searched
           | comparison NOT SEARCH STRING              -> not_searched
           | comparison _BETWEEN unary _AND unary      -> between
           | comparison NOT _BETWEEN unary _AND unary  -> not_between
           | comparison _IN texts                      -> among
           | comparison NOT _IN texts                  -> not_among
           | unary
?unary: _PLUS unary                                    -> plus
      | MINUS unary                                    -> minus
      | NOT unary                                      -> opposite
      | primary
?primary: NAME                                         -> named
        | STRING                                       -> text
        | WHOLE                                        -> whole
        | DECIMAL                                      -> decimal
        | TRUE                                         -> true
        | FALSE                                        -> false
        | NULL                                         -> null
        | _OPEN disjunction _CLOSE
texts: _OPEN STRING (_COMMA STRING)* _CLOSE

NAME: /[A-Za-z_$][A-Za-z0-9_$]*+/
DECIMAL.2: /(?:[0-9]++\.[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++/
WHOLE.1: /(?:0|[1-9][0-9]*+)[lL]?/
STRING: /'[^']*+(?:''[^']*+)*'(?!')/
_UNEQUAL.1: "<>"
_EQUAL: "="
ORDER: /[<>]=?/
_PLUS: "+"
MINUS: "-"
_OPEN: "("
_CLOSE: ")"
_COMMA: ","
%declare NOT _AND _OR _BETWEEN _IN _IS NULL TRUE FALSE SEARCH

LINE_COMMENT.3: /--[^\n\r]*+/
BLOCK_COMMENT.3: /\/\*[^*]*+(?:\*++[^*\/][^*]*+)*\*++\//
%ignore /[ \t\n\r\f]++/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

_KEYWORDS: Final = {
    "NOT": "NOT",
    "AND": "_AND",
    "OR": "_OR",
    "BETWEEN": "_BETWEEN",
    "IN": "_IN",
    "IS": "_IS",
    "NULL": "NULL",
    "TRUE": "TRUE",
    "FALSE": "FALSE",
    "CONTAINS": "SEARCH",
    "STARTSWITH": "SEARCH",
    "ENDSWITH": "SEARCH",
}

_WORDS: Final = {"_OPEN": "(", "_CLOSE": ")", "_COMMA": ",", "SEARCH": "CONTAINS", "STRING": "a text"}
_SHOWN_MAX: Final = 40
_TOKENS_A_STEP: Final = 64

_CHARACTER_HINTS: Final = {
    "!": "unequal is written <>",
    '"': "texts stand in 'single quotes'",
    "'": "a text that begins here does not end; a quote within a text is written ''",
    "/": "there is no arithmetic, and a comment that begins with /* ends with */",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic",
    "|": "alternatives are joined by OR",
    "&": "conditions are joined by AND",
}
_WORD_HINTS: Final = {
    "LIKE": "there is no LIKE; use CONTAINS, STARTSWITH or ENDSWITH",
    "XOR": "there is no XOR; use <> between two conditions in parentheses",
    "=": "equal is written with one =",
    "+": "there is no arithmetic",
    "-": "there is no arithmetic",
}


@lru_cache(maxsize=1)
def _parser() -> Lark:
    """Return the parser; it and its library are loaded on first use."""
    from lark import Lark

    return Lark(
        GRAMMAR, parser="lalr", lexer="basic", transformer=ExpressionCompiler(), lexer_callbacks={"NAME": _keyword}
    )


def _keyword(token: Token) -> Token:
    keyword = _KEYWORDS.get(token.upper())
    return token if keyword is None else token.update(type=keyword)


def parsing(expression: str) -> Generator[None, None, Node]:
    """Parse and compile an expression, yielding after each fraction of a millisecond; return its root.

    Raises:
        FilterSyntaxError: it is not valid, or too large.
    """
    from lark import UnexpectedCharacters, UnexpectedToken

    parser = _parser().parse_interactive(expression)
    try:
        for number, _ in enumerate(parser.iter_parse(), start=1):
            if number % _TOKENS_A_STEP == 0:
                yield
        root = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        found = expression[at]
        hint = _CHARACTER_HINTS.get(found)
        raise FilterSyntaxError(
            f"{found!r} has no place here" + (f"; {hint}" if hint else ""), at, expression
        ) from None
    except UnexpectedToken as error:
        raise _unexpected(error, expression) from None
    assert isinstance(root, Node)
    return root


def _unexpected(error: UnexpectedToken, expression: str) -> FilterSyntaxError:
    token = error.token
    expected = error.expected
    if "NAME" in expected:
        wanted = "a property, a value or ( was expected"
    elif expected == {"STRING"}:
        wanted = "a text in 'single quotes' was expected"
    elif "_OR" in expected:
        wanted = f"an operator, AND, OR or {'the end' if '$END' in expected else ')'} was expected"
    else:
        words = sorted(_WORDS.get(name, name.strip("_")) for name in expected)
        wanted = f"{' or '.join(words)} was expected"
    if token.type == "$END":
        return FilterSyntaxError(f"the expression ends too early; {wanted}", len(expression), expression)
    shown = token if len(token) <= _SHOWN_MAX else token[:_SHOWN_MAX] + "..."
    hint = _WORD_HINTS.get(token.upper(), wanted)
    return FilterSyntaxError(f"{shown} has no place here; {hint}", token.start_pos or 0, expression)


_OUTCOMES_MAX: Final = 256


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SqlFilter:
    """A filter by properties. Evaluation takes no lock and changes nothing."""

    expression: str
    parts: int
    """Operands and operations: its cost in time and memory."""
    lookups: int
    """Maximum property lookups of one evaluation."""
    _evaluate: Evaluate = field(repr=False)

    @staticmethod
    def parse(expression: str) -> SqlFilter:
        """Compile an expression, or return the filter compiled for it before.

        Raises:
            FilterSyntaxError: it cannot be compiled; says where and why.
        """
        steps = SqlFilter.parsing(expression)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                compiled: SqlFilter = done.value
                return compiled

    @staticmethod
    def parsing(expression: str) -> Generator[None, None, SqlFilter]:
        """Like `parse`, yielding after each fraction of a millisecond; return the filter.

        Raises:
            FilterSyntaxError: as `parse`.
        """
        outcome = _outcomes.pop(expression, None)
        if outcome is None:
            outcome = yield from _compiling(expression)
        _outcomes[expression] = outcome
        while len(_outcomes) > _OUTCOMES_MAX:
            _outcomes.pop(next(iter(_outcomes)), None)
        if isinstance(outcome, SqlFilter):
            return outcome
        raise FilterSyntaxError(outcome.reason, outcome.position, outcome.expression)

    @staticmethod
    def is_known(expression: str) -> bool:
        """Return whether an expression was compiled or rejected recently, so that again it costs nothing."""
        return expression in _outcomes

    def evaluate(self, properties: bytes) -> bool | None:
        """Return whether the expression is true, false or unknown for these encoded properties.

        Raises:
            NotComparable: it compares values that cannot be compared, such as a word with a number.
        """
        value: bool | None = self._evaluate(properties)
        return value

    def matches(self, properties: bytes) -> bool:
        """Return whether the expression is true for these encoded properties."""
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


_outcomes: dict[str, SqlFilter | FilterSyntaxError] = {}
"""Outcomes of recent expressions, least recently used first; clients also repeat rejected ones."""


def _compiling(expression: str) -> Generator[None, None, SqlFilter | FilterSyntaxError]:
    try:
        check_size(expression)
        root = yield from parsing(expression)
    except FilterSyntaxError as error:
        return FilterSyntaxError(error.reason, error.position, expression)
    return SqlFilter(expression, root.size, root.lookups, root.evaluate)
