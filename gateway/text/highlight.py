"""Colours code: HTML with classes for keywords, strings, comments and the like. The style sheet has the colours."""

from functools import cache, lru_cache
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MAX_CHARS = 10_000
"""Longer code stays plain."""

_NAMES = """\
awk bash c c++ cmake cpp cs csharp css dart diff docker dockerfile elixir erlang fish fortran go graphql haskell hcl
html http ini java javascript js json json5 jsx julia kotlin latex less lua make makefile markdown md nginx nix
objective-c ocaml perl php postgresql powershell properties proto protobuf ps1 py python python3 r rb ruby rs rust scala
scss sh shell sql swift terraform tex toml ts tsx typescript vim xml yaml yml zig zsh
"""
LANGUAGES = frozenset(_NAMES.split())
"""The languages that are coloured. Others would load a lexer that no one has looked at."""

_CLASSES = (
    ("Comment", "c"),
    ("Keyword", "k"),
    ("Literal.String", "s"),
    ("Literal.Number", "n"),
    ("Name.Function", "f"),
    ("Name.Class", "f"),
    ("Name.Builtin", "b"),
    ("Name.Decorator", "b"),
    ("Name.Tag", "k"),
    ("Name.Attribute", "f"),
    ("Name.Variable", "v"),
    ("Operator.Word", "k"),
    ("Generic.Deleted", "d"),
    ("Generic.Inserted", "i"),
    ("Generic.Heading", "k"),
    ("Generic.Subheading", "k"),
)


@lru_cache(maxsize=64)
def highlight(code: str, language: str) -> str:
    """Return the code as HTML. It has the same text, whatever the language."""
    if language.lower() not in LANGUAGES or len(code) > MAX_CHARS:
        return escape(code)
    pieces: list[str] = []
    last, text = "", ""
    for kind, value in _lexer(language.lower()).get_tokens(code):
        name = _class_of(str(kind).removeprefix("Token."))
        if name != last:
            pieces.append(_span(last, text))
            last, text = name, ""
        text += value
    pieces.append(_span(last, text))
    return "".join(pieces)


def _span(name: str, text: str) -> str:
    return f'<span class="hl-{name}">{escape(text)}</span>' if name and text.strip() else escape(text)


@lru_cache(maxsize=512)
def _class_of(kind: str) -> str:
    return next((name for prefix, name in _CLASSES if kind == prefix or kind.startswith(f"{prefix}.")), "")


@cache
def _lexer(language: str) -> "Lexer":
    # Only messages with code need it.
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415 - see above.

    return get_lexer_by_name(language, stripnl=False, ensurenl=False)
