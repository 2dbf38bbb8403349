"""Text helpers, the same for every channel. Channels of third parties may use them.

Markdown is in `gateway.text.markdown`, which is not imported here: it loads a parser that most modules don't need.
"""

import sys
from importlib import import_module
from types import ModuleType
from warnings import warn

from gateway.text.plain import clean, draw_table, excerpt, printable
from gateway.text.splitting import split, utf16_length

__all__ = ["clean", "draw_table", "excerpt", "printable", "split", "utf16_length"]

_MOVED_MODULES = {
    "clusters": "splitting",
    "hygiene": "plain",
    "parsing": "markdown",
    "phrases": "plain",
    "tables": "plain",
}
_RENAMED = {"drawn_table": "render_table"}


class _MovedModule(ModuleType):
    """A module of version 0.1. Its names still work, with a warning."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        module = f"{__name__}.{_MOVED_MODULES[self.__name__.rpartition('.')[2]]}"
        renamed = _RENAMED.get(name, name)
        warn(f"{self.__name__}.{name} is deprecated: use {module}.{renamed}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), renamed)


for _old in _MOVED_MODULES:
    sys.modules[f"{__name__}.{_old}"] = globals()[_old] = _MovedModule(f"{__name__}.{_old}")
