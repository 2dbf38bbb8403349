"""Where a channel keeps small facts across restarts: in the spool, each channel's apart from all others'."""

from collections.abc import Mapping

from gateway.spool import Remember, Spool

__all__ = ["LooseLeaf", "SpoolNotebook"]


class SpoolNotebook:
    """A page for each bot identity; names are slugs, so no channel can write on another's."""

    def __init__(self, spool: Spool, channel: str, account: str) -> None:
        self._spool = spool
        self._prefix = f"channel:{channel}:{account}:"

    async def read(self) -> dict[str, str]:
        facts = await self._spool.facts(self._prefix)
        return {name.removeprefix(self._prefix): value for name, value in facts.items()}

    async def write(self, facts: Mapping[str, str | None]) -> None:
        await self._spool.commit(
            *(Remember(name=f"{self._prefix}{name}", value=value) for name, value in facts.items())
        )


class LooseLeaf:
    """A notebook that lasts as long as the process."""

    def __init__(self, _channel: str = "", _account: str = "") -> None:
        self._facts: dict[str, str] = {}

    async def read(self) -> dict[str, str]:
        return dict(self._facts)

    async def write(self, facts: Mapping[str, str | None]) -> None:
        for name, value in facts.items():
            if value is None:
                self._facts.pop(name, None)
            else:
                self._facts[name] = value
