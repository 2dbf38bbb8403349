"""Markdown to HTML that can be put into a page: whatever the text says, it can only be shown."""

from collections.abc import Sequence

from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from gateway.text.parsing import Parser

__all__ = ["render_html"]

_SAFE_SCHEMES = ("http://", "https://", "mailto:")
_LINK_GUARDS = {"rel": "noopener noreferrer nofollow", "target": "_blank"}


def render_html(markdown: str) -> str:
    """Render CommonMark with tables and strikethrough. HTML in it is shown as text; an image becomes a link to it."""
    tokens = _parser.parse(markdown)
    if tokens is None:
        return f"<p>{escapeHtml(markdown)}</p>\n"
    return str(_renderer.render(tokens, _parser.options, {}))


class _Renderer(RendererHTML):
    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        env["is_inside_link"] = True
        tokens[idx].attrs.update(_LINK_GUARDS)
        return self.renderToken(tokens, idx, options, env)

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        env["is_inside_link"] = False
        return self.renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Show a link instead: loading an image would tell its server who reads, and when."""
        source = str(tokens[idx].attrs.get("src", ""))
        label = escapeHtml(self.renderInlineAsText(tokens[idx].children, options, env) or source)
        if env.get("is_inside_link"):
            return label
        link = Token("link_open", "a", 1, attrs={"href": source, **_LINK_GUARDS})
        return f"{self.renderToken([link], 0, options, env)}{label}</a>"

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self._cell(tokens, idx, options, env)

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self._cell(tokens, idx, options, env)

    def _cell(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Align by attribute: a content security policy without inline styles ignores `style`."""
        style = str(tokens[idx].attrs.pop("style", ""))
        if style:
            tokens[idx].attrs["align"] = style.removeprefix("text-align:")
        return self.renderToken(tokens, idx, options, env)


def _is_safe_link(url: str) -> bool:
    return url.strip().lower().startswith(_SAFE_SCHEMES)


_parser = Parser(_is_safe_link)
_renderer = _Renderer()
