"""Finds out what would keep the gateway from starting, without starting it: nothing is written, nobody is called."""

from collections.abc import Iterator

from config import Settings
from gateway.channels import Channels
from gateway.contract import Address, CommandInfo, Line, OpenQuestion, Sender, SessionInfo
from gateway.errors import GatehouseError
from gateway.roster import agent_faults

__all__ = ["NoSessions", "start_faults"]


def start_faults(settings: Settings) -> list[str]:
    """Return everything at once, each as a sentence."""
    return [*agent_faults(settings), *_channel_faults(settings)]


def _channel_faults(settings: Settings) -> Iterator[str]:
    """Open the channels one by one, as a start does; by their contract that does no I/O."""
    for name, channel in settings.channels.items():
        try:
            Channels(NoSessions()).open(settings.model_copy(update={"channels": {name: channel}}))
        except GatehouseError as fault:
            yield str(fault)


class NoSessions:
    """A browser for channels that nobody will talk through."""

    def sessions(self, _address: Address, _sender: Sender, _guild: str | None = None) -> list[SessionInfo]:
        return []

    async def history(self, _address: Address, _sender: Sender, *, limit: int) -> list[Line]:
        return [][:limit]

    def questions(self, _address: Address, _sender: Sender) -> list[OpenQuestion]:
        return []

    def commands(self) -> list[CommandInfo]:
        return []
