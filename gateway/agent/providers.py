"""Opening a provider by the kind that its settings name."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from config import ProviderSettings
from gateway.agent.provider import Provider
from gateway.errors import CannotStart

__all__ = ["open_provider"]

_KINDS = {"offline": "gateway.agent.offline:open_offline"}
"""Import paths, so that an SDK costs its seconds and megabytes only where it is used."""


def open_provider(settings: ProviderSettings, *, name: str = "<id>") -> Provider:
    """Open the provider that `providers.<name>` describes. It does no I/O until it is used."""
    path = _KINDS.get(settings.kind.value)
    if path is None:
        raise CannotStart(
            f"providers.{name}.kind: {settings.kind.value!r} is not part of this version. "
            f"Use one of: {', '.join(sorted(_KINDS))}."
        )
    module, _, function = path.partition(":")
    opened = cast("Callable[[ProviderSettings], Provider]", getattr(import_module(module), function))
    return opened(settings)
