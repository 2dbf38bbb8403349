"""Formulas in Markdown: finds LaTeX between dollars or escaped brackets, and renders it as safe MathML.

The converter copies some of its input into tags and attributes. So its tree is written here, with lists of what may be
in it: https://www.w3.org/TR/mathml-core/
"""

from functools import lru_cache
from html import escape, unescape
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_CHARS = 2_000
"""A longer formula is shown as it was written. The converter takes 0.1 s for this many characters at worst."""
MAX_LINES = 60

_INLINE = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))
_DISPLAYED = {"$$", "\\["}
_TAG_NAMES = """\
math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle
msub msubsup msup mtable mtd mtext mtr munder munderover none
"""
_ATTRIBUTE_NAMES = """\
accent accentunder columnalign columnlines columnspacing columnspan depth display displaystyle fence form height largeop
linethickness lspace mathvariant maxsize minsize movablelimits notation rowlines rowspacing rowspan rspace scriptlevel
separator stretchy symmetric voffset width
"""
TAGS = frozenset(_TAG_NAMES.split())
ATTRIBUTES = frozenset(_ATTRIBUTE_NAMES.split())


def enable_maths(parser: MarkdownIt) -> None:
    """Make a parser produce `math` tokens. `content` is the formula, `markup` what stands in front of it."""
    parser.inline.ruler.before("escape", "maths", _inline_rule)
    parser.block.ruler.before("fence", "maths", _block_rule, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _inline_rule(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - the parser's signature.
    source, start = state.src, state.pos
    for opener, closer in _INLINE:
        if not source.startswith(opener, start):
            continue
        first = start + len(opener)
        end = _closing_dollar(source, start) if opener == "$" else source.find(closer, first, first + MAX_CHARS)
        if end < 0 or not source[first:end].strip():
            return False
        if not silent:
            token = state.push("math", "", 0)
            token.content, token.markup = source[first:end].strip(), opener
        state.pos = end + len(closer)
        return True
    return False


def _closing_dollar(source: str, start: int) -> int:
    """Return where a formula that starts with one dollar ends; -1 if this is no formula, but money or a variable."""
    if source[start + 1 : start + 2].isspace() or (
        start > 0 and (source[start - 1].isalnum() or source[start - 1] == "$")
    ):
        return -1
    end = source.find("$", start + 2, start + MAX_CHARS)
    while end > 0 and source[end - 1] == "\\":
        end = source.find("$", end + 1, start + MAX_CHARS)
    if end < 0 or source[end - 1].isspace():
        return -1
    after = source[end + 1 : end + 2]
    return -1 if after.isalnum() or after == "$" else end


def _block_rule(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:  # noqa: FBT001 - as above.
    """Find a formula that begins a line and ends one. Its lines are no lists and no headings."""
    begin = state.bMarks[start_line] + state.tShift[start_line]
    opener = state.src[begin : begin + 2]
    if opener not in _DISPLAYED or state.is_code_block(start_line):
        return False
    closer = "$$" if opener == "$$" else "\\]"
    lines: list[str] = []
    for line in range(start_line, min(end_line, start_line + MAX_LINES)):
        if line > start_line and state.sCount[line] < state.blkIndent:
            return False
        text = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].strip()
        text = text[2:] if line == start_line else text
        if text.endswith(closer):
            lines.append(text[:-2])
            break
        if closer in text:
            return False
        lines.append(text)
    else:
        return False
    content = "\n".join(lines).strip()
    if not content or len(content) > MAX_CHARS:
        return False
    if not silent:
        token = state.push("math", "", 0)
        token.block, token.content, token.markup, token.map = True, content, opener, [start_line, line + 1]
        state.line = line + 1
    return True


def render_formula(source: str, markup: str) -> str:
    """Return a formula as HTML, displayed or in the line. One that cannot be converted is shown as code."""
    is_displayed = markup in _DISPLAYED
    html = _mathml(source, is_displayed=is_displayed) or f"<code>{escape(source)}</code>"
    return f'<span class="formula" tabindex="0">{html}</span>' if is_displayed else html


@lru_cache(maxsize=256)
def _mathml(source: str, *, is_displayed: bool) -> str:
    """Return MathML, or an empty string."""
    # Only messages with formulas need it.
    from latex2mathml.converter import convert_to_element  # noqa: PLC0415 - see above.

    try:
        element = convert_to_element(source, display="block" if is_displayed else "inline")
        return _written(element)
    except Exception:  # noqa: BLE001 - the converter raises errors of many kinds for bad LaTeX.
        return ""


def _written(element: "Element") -> str:
    if element.tag not in TAGS:
        raise ValueError(element.tag)
    attributes = "".join(
        f' {name}="{escape(str(value))}"' for name, value in element.attrib.items() if name in ATTRIBUTES
    )
    # Text has references such as `&#x02211;` in it.
    text = escape(unescape(element.text or ""), quote=False)
    inside = "".join(f"{_written(child)}{escape(unescape(child.tail or ''), quote=False)}" for child in element)
    return f"<{element.tag}{attributes}>{text}{inside}</{element.tag}>"
