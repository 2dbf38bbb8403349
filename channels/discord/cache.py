"""Where a message stands: Discord does not say with a message whether its channel is a thread."""

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

from channels.discord.api import Api
from channels.discord.gateway_connection import Frame
from channels.discord.wire import Place
from gateway.errors import Undeliverable

REMEMBERED = 10_000
THREADS = {10, 11, 12}
"""https://discord.com/developers/docs/resources/channel#channel-object-channel-types"""


class Places:
    """Knows what the gateway tells about servers and their threads, and asks for the rest once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._parents: OrderedDict[int, int] = OrderedDict()
        self._roles: OrderedDict[str, str] = OrderedDict()

    async def own_role(self, message: Frame, guild: str | None) -> str:
        """Return the role that Discord made for the bot in the server; empty where there is none.

        What was missed is read before the gateway tells of the servers, so it is asked for where a role is called.
        """
        if guild is not None and guild not in self._roles and message.get("mention_roles"):
            with suppress(Undeliverable):
                self._learn_roles(guild, await self._api.roles(int(guild)))
        return self._roles.get(guild or "", "")

    def hear(self, event: str, data: Frame) -> None:
        """Learn from an event, if there is something to be learned."""
        match event:
            case "GUILD_CREATE":
                self._learn_roles(str(data.get("id")), data.get("roles") or ())
                found = [*(data.get("channels") or ()), *(data.get("threads") or ())]
            case "THREAD_LIST_SYNC":  # Its channels are bare ids.
                found = list(data.get("threads") or ())
            case "CHANNEL_CREATE" | "THREAD_CREATE":
                found = [data]
            case "GUILD_ROLE_CREATE":
                self._learn_role(str(data.get("guild_id")), data.get("role"))
                return
            case _:
                return
        for channel in found:
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # Then it is asked for when it matters.
                self._learn(int(channel["id"]), parent_of(channel))

    def _learn_roles(self, guild: str, roles: Iterable[Frame]) -> None:
        if roles:
            self._roles[guild] = ""
        for role in roles:
            self._learn_role(guild, role)
        if len(self._roles) > REMEMBERED:
            self._roles.popitem(last=False)

    def _learn_role(self, guild: str, role: Frame | None) -> None:
        with suppress(KeyError, TypeError, AttributeError):  # Most have no tags.
            if role and str(role["tags"]["bot_id"]) == self._api.me:
                self._roles[guild] = str(role["id"])

    async def of(self, message: Frame) -> Place:
        channel, guild = str(message["channel_id"]), message.get("guild_id")
        if guild is None:
            return Place(channel=channel)
        number = int(channel)
        if number not in self._parents:
            self._learn(number, parent_of(await self._api.channel(number)))
        parent = self._parents[number]
        return Place(channel=channel, guild=str(guild), parent=str(parent) if parent else None)

    def _learn(self, channel: int, parent: int) -> None:
        self._parents[channel] = parent
        if len(self._parents) > REMEMBERED:
            self._parents.popitem(last=False)


def parent_of(channel: Frame) -> int:
    """Return the channel that a thread hangs on; 0 for what is no thread."""
    return int(channel.get("parent_id") or 0) if channel.get("type") in THREADS else 0


def place_of_interaction(interaction: Frame) -> Place:
    """Name the place where somebody acted; unlike a message, an interaction says it."""
    guild, where = interaction.get("guild_id"), interaction.get("channel") or {}
    parent = parent_of(where)
    return Place(
        channel=str(interaction.get("channel_id") or where["id"]),
        guild=str(guild) if guild else None,
        parent=str(parent) if guild and parent else None,
    )
