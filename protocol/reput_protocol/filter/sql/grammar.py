"""The grammar of filter expressions (RocketMQ: SelectorParser.jj), and the messages for syntax errors.

Differences from RocketMQ's parser are in docs/filters.md; `compiler.py` has the limits. Parsing takes time and memory
proportional to the text, and no recursion.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.sql.compiler import ExpressionCompiler
from reput_protocol.filter.sql.nodes import Node

if TYPE_CHECKING:
    from lark import Lark, Token, UnexpectedToken

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
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=ExpressionCompiler(),
        lexer_callbacks={"NAME": _keyword},
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
