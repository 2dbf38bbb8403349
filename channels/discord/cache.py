"""Cache of server facts that Discord does not send with a message: the parent of a thread, the bot's own role."""

from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

from channels.discord.api import DiscordApi
from channels.discord.wire import UNREADABLE, DiscordChat, Json, thread_parent
from gateway.errors import Undeliverable

MAX_CACHED = 10_000

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentDict(dict[Key, Value]):
    """A dict that drops its oldest key when it has more than `limit`. Only assignment is limited, not `update`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]


class GuildCache:
    """Learns from gateway events, and asks the API once for facts that no event has told."""

    def __init__(self, api: DiscordApi) -> None:
        self._api = api
        # By channel id; 0 for a channel that is not a thread.
        self._parents = RecentDict[int, int](MAX_CACHED)
        # By server id; empty if the server has no role for the bot.
        self._roles = RecentDict[str, str](MAX_CACHED)

    def update(self, event: str, data: Json) -> None:
        """Learn from a gateway event. Ignores events of no use here."""
        match event:
            case "GUILD_CREATE":
                self._learn_roles(str(data.get("id")), data.get("roles") or ())
                channels = [*(data.get("channels") or ()), *(data.get("threads") or ())]
            case "THREAD_LIST_SYNC":  # Its `channels` are bare ids.
                channels = list(data.get("threads") or ())
            case "CHANNEL_CREATE" | "THREAD_CREATE":
                channels = [data]
            case "GUILD_ROLE_CREATE":
                self._learn_role(str(data.get("guild_id")), data.get("role"))
                return
            case _:
                return
        for channel in channels:
            with suppress(*UNREADABLE):  # `chat_of` asks the API instead, when the channel matters.
                self._parents[int(channel["id"])] = thread_parent(channel)

    async def chat_of(self, message: Json) -> DiscordChat:
        """Return the chat of a message."""
        channel, guild = str(message["channel_id"]), message.get("guild_id")
        if guild is None:
            return DiscordChat(channel=channel)
        parent = self._parents.get(int(channel))
        if parent is None:
            parent = self._parents[int(channel)] = thread_parent(await self._api.channel(int(channel)))
        return DiscordChat(channel=channel, guild=str(guild), parent=str(parent) if parent else None)

    async def bot_role(self, message: Json, guild: str | None) -> str:
        """Return the role that Discord created for the bot in this server, or an empty string."""
        # Missed messages are read before GUILD_CREATE arrives, so ask for the roles if the message mentions one.
        if guild is not None and guild not in self._roles and message.get("mention_roles"):
            with suppress(Undeliverable):
                self._learn_roles(guild, await self._api.roles(int(guild)))
        return self._roles.get(guild or "", "")

    def _learn_roles(self, guild: str, roles: Iterable[Json]) -> None:
        if roles:
            self._roles[guild] = ""
        for role in roles:
            self._learn_role(guild, role)

    def _learn_role(self, guild: str, role: Json | None) -> None:
        with suppress(KeyError, TypeError, AttributeError):  # Most roles have no tags.
            if role and str(role["tags"]["bot_id"]) == self._api.bot_id:
                self._roles[guild] = str(role["id"])
