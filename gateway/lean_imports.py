"""Imports aiohttp and structlog without the work that they do on import and the daemon may never need."""

import importlib
import os
import ssl
import sys
from typing import Any


class _WithoutCertificates(ssl.SSLContext):
    """A context that loads the system's CA certificates before its first connection."""

    __slots__ = ()

    # `Any`: the arguments are passed on as they are.
    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401
        return self._loaded().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:  # noqa: ANN401
        return self._loaded().wrap_socket(*args, **options)

    def _loaded(self) -> ssl.SSLContext:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # The same context, without these methods.
        self.set_default_verify_paths()
        return self


def import_libraries() -> None:
    """Import aiohttp and structlog. Does nothing if they are already imported. No other thread must run.

    aiohttp makes two SSL contexts, each with all CA certificates of the system: 40 ms and 4 MB. structlog imports rich
    if it is installed, for tracebacks with colours, which the daemon's log does not use: 50 ms and 5 MB.
    """
    # pydantic would look for plugins in the metadata of every installed package, when it builds the settings. `serve`
    # removes the variable with the rest of the environment.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "aiohttp" not in sys.modules:
        ssl.SSLContext.set_default_verify_paths = _load_later  # type: ignore[assignment,method-assign]  # See below.
        try:
            importlib.import_module("aiohttp")
        finally:
            del ssl.SSLContext.set_default_verify_paths  # Uncovers the method of its base class again.
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # This makes an import of it raise ImportError.
        try:
            importlib.import_module("structlog")
        finally:
            del sys.modules["rich"]


def _load_later(context: ssl.SSLContext) -> None:
    context.__class__ = _WithoutCertificates
