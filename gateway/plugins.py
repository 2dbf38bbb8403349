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
            f"channels.{point.name} is enabled, but it needs the module `{missing.name}`, which is not installed. "
            f"Install the package that has it, or install `{_owner(point)}`, which brings the channel, again; "
            f"or set channels.{point.name}.enabled to false.",
        ) from missing
    except (Exception, SystemExit) as broken:  # What a stranger's module does on import is not ours to foresee.
        raise _broken(point, f"importing it gives {type(broken).__name__}: {broken}") from broken
    if not callable(opener):
        raise _broken(point, f"`{point.value}` cannot be called")
    return opener


def _broken(point: EntryPoint, fault: str) -> CannotStart:
    return CannotStart(
        f"channels.{point.name} is enabled, but the package `{_owner(point)}`, which brings it, is broken: {fault}. "
        f"Install another version of it, or set channels.{point.name}.enabled to false.",
    )


def _owner(point: EntryPoint) -> str:
    """Return the name of the distribution, as pip knows it."""
    return point.dist.name if point.dist else point.module.partition(".")[0]
