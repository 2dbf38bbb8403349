"""Finds channels by their entry points, ours in the same way as a third party's, and imports only those enabled."""

from importlib.metadata import EntryPoint, entry_points

from gateway.contract import OpenChannel
from gateway.errors import CannotStart

__all__ = ["find_channel"]

GROUP = "gatehouse.channels"


def find_channel(name: str) -> OpenChannel:
    """Import the channel called `name`; `CannotStart` says what is missing and how to get it."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise CannotStart(
            f"channels.{name} is enabled, but no channel of that name is installed. "
            f"Installed are: {', '.join(sorted(found))}. "
            f"Install the package that brings it, or set channels.{name}.enabled to false.",
        )
    return _load(found[name])


def _load(point: EntryPoint) -> OpenChannel:
    try:
        opener: OpenChannel = point.load()
    except ModuleNotFoundError as missing:
        raise CannotStart(
            f"channels.{point.name} is enabled, but it needs the Python package `{missing.name}`. "
            f"Install it with: pip install 'gatehouse[{point.name}]'",
        ) from missing
    except (ImportError, AttributeError) as broken:
        raise CannotStart(
            f"channels.{point.name} is enabled, but its package is broken: {broken}. "
            f"Reinstall it, or set channels.{point.name}.enabled to false.",
        ) from broken
    return opener
