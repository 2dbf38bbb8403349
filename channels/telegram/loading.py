"""Loading aiogram, without the models that nobody has asked for yet.

They describe the whole Bot API, some six hundred of them. aiogram says that pydantic shall build each when it is first
used (`defer_build`), and then has all of them built at the end of its import: four seconds and a hundred megabytes.
"""

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

__all__ = ["load_aiogram"]

_LOADING = threading.Lock()
"""Several accounts may be connected at once, each in a thread."""

# A method of pydantic's is put in the place of another below; a type checker takes that for a mistake.
_rebuild: Any = BaseModel.__dict__["model_rebuild"]


def load_aiogram() -> None:
    """Import it, in a thread, before anything else does; one that is there already stays as it is."""
    with _LOADING:
        if "aiogram" not in sys.modules:
            with _nothing_built():
                importlib.import_module("aiogram")
            _let_build_themselves()


@contextmanager
def _nothing_built() -> Iterator[None]:
    """While inside, aiogram builds nothing; others, who may import something in another thread, build as always."""

    def build(cls: type[BaseModel], /, **how: Any) -> bool | None:  # noqa: ANN401 - whatever pydantic takes
        return None if cls.__module__.startswith("aiogram.") else _built(cls, **how)

    BaseModel.model_rebuild = classmethod(build)  # type: ignore[assignment,method-assign]  # See above.
    try:
        yield
    finally:
        BaseModel.model_rebuild = _rebuild  # type: ignore[method-assign]  # See above.


def _let_build_themselves() -> None:
    """Tell the models by which names they know each other: that is all they need to be built when they are used."""
    types, methods = importlib.import_module("aiogram.types"), importlib.import_module("aiogram.methods.base")
    names = {**vars(types), "Default": importlib.import_module("aiogram.client.default").Default, "List": list}

    def build(cls: type[BaseModel], /, *, force: bool = False, raise_errors: bool = True, **_: object) -> bool | None:
        return _built(cls, force=force, raise_errors=raise_errors, _types_namespace=names)

    for base in (types.TelegramObject, methods.TelegramMethod, methods.Response):
        base.model_rebuild = classmethod(build)


def _built(cls: type[BaseModel], **how: Any) -> bool | None:  # noqa: ANN401 - as above
    """Let pydantic build a model as it does by itself."""
    is_built: bool | None = _rebuild.__func__(cls, **how)
    return is_built
