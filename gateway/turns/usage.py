"""What people use of the models: what each has used today, and what a turn owes."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial, reduce

from config import LimitSettings, Settings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Usage
from gateway.contract import Inbound
from gateway.errors import Refused
from gateway.metrics import Tally
from gateway.sessions import entries
from gateway.spool import Spend, Spent, Spool
from gateway.spool.spool import insist

__all__ = ["TurnUsage", "DailyUsage", "utc_day", "person_of"]

_REMEMBERED = 10_000
_MICROS = 1_000_000


def utc_day(now: datetime) -> str:
    return now.astimezone(UTC).date().isoformat()


def person_of(settings: Settings, inbound: Inbound) -> str:
    """Name who pays: the same person on several platforms is one, where the owner has linked the ids."""
    known_as = f"{inbound.address.channel}:{inbound.sender.id or inbound.address.peer}"
    linked = (name for name, ids in settings.session.identity_links.items() if known_as in ids)
    name = next(linked, None)
    return known_as if name is None else f"~{name}"


class DailyUsage:
    """What each person has used today. The spool has it; whoever was looked at lately is known without asking it."""

    def __init__(self, spool: Spool, now: Callable[[], datetime], tally: Tally | None = None) -> None:
        self._spool = spool
        self._tally = tally or Tally()
        self._now = now
        self._known: OrderedDict[tuple[str, str], Spent] = OrderedDict()
        self._whole = ""
        """The day of which everybody is known who has used anything, as long as nobody was forgotten."""

    async def today(self, person: str) -> Spent:
        key = (utc_day(self._now()), person)
        if key not in self._known:
            # On a full disk even reading fails, together with what others could not write.
            await insist(partial(self._look_up, *key))
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
            self._whole = ""
        return self._known[key]

    async def _look_up(self, day: str, person: str) -> None:
        """Ask the spool, the first time on a day about everybody: most who come later have used nothing yet."""
        if self._whole != day:
            found = await self._spool.spenders(day, limit=_REMEMBERED)
            for name, spent in found:
                self._known.setdefault((day, name), spent)
            self._whole = day if len(found) < _REMEMBERED else ""
        if not self._whole and (day, person) not in self._known:
            self._known.setdefault((day, person), await self._spool.spent(day, person))
        self._known.setdefault((day, person), Spent())

    def add(self, spend: Spend) -> None:
        """Take in what will be committed; of one who is not known here, the spool will tell."""
        self._tally.spent(spend)
        key = (spend.day, spend.person)
        if key in self._known or self._whole == spend.day:
            self._known[key] = self._known.get(key, Spent()) + _spent(spend)

    async def everybody(self, limit: int) -> tuple[Spent, list[tuple[str, Spent]]]:
        """Return what all have used today together, and who has used most."""
        day = utc_day(self._now())
        return await self._spool.spent(day), await self._spool.spenders(day, limit=limit)


class TurnUsage:
    """What one turn owes. It is written down with the turn's entries: what `due` says, in the same commit."""

    def __init__(
        self,
        person: str,
        *,
        spending: DailyUsage,
        limits: LimitSettings,
        about: Callable[[str], ModelInfo],
        now: Callable[[], datetime],
    ) -> None:
        self._person = person
        self._spending = spending
        self._limits = limits
        self._about = about
        self._now = now
        self._due: list[tuple[Spend, entries.Usage]] = []
        self._tokens = 0
        self.model = ""
        """Which model was charged last: a fallback, perhaps."""

    async def check(self) -> None:
        """Refuse another step to one who has used up what there is."""
        limit = self._limits.tokens_per_turn
        if limit and self._tokens >= limit:
            raise Refused(
                f"I stopped: this answer has used {self._tokens:,} tokens, and one may use {limit:,}. "
                "Ask for less at once; the owner can raise limits.tokens_per_turn."
            )
        limit = self._limits.tokens_per_user_per_day
        used = (await self._spending.today(self._person)).tokens if limit else 0
        if limit and used >= limit:
            raise Refused(
                f"You have used {used:,} tokens today, and {limit:,} are allowed. There are new ones after 00:00 UTC; "
                "the owner can raise limits.tokens_per_user_per_day."
            )

    def charge(self, usage: Usage, *, model: str) -> None:
        """Add a step of `model`, or of the fallback that the usage names."""
        model = usage.model or model
        cost = round((self._about(model).cost(usage) or 0) * _MICROS)
        spend = Spend(
            day=utc_day(self._now()),
            person=self._person,
            model=model,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            cost_micros=cost,
        )
        self._due.append((spend, _noted(usage, cost)))
        self._spending.add(spend)
        self.model = model
        self._tokens += usage.input_tokens + usage.output_tokens

    @property
    def due(self) -> list[Spend]:
        """What has not been written down yet."""
        return [spend for spend, _ in self._due]

    @property
    def noted(self) -> entries.Usage | None:
        """The same, as the transcript keeps it."""
        return reduce(_added, (usage for _, usage in self._due)) if self._due else None

    def settled(self, paid: Sequence[Spend]) -> None:
        """Take out what was written down."""
        del self._due[: len(paid)]


def _noted(usage: Usage, cost_micros: int) -> entries.Usage:
    return entries.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_micros=cost_micros,
    )


def _added(one: entries.Usage, other: entries.Usage) -> entries.Usage:
    return entries.Usage(
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
        cost_micros=one.cost_micros + other.cost_micros,
    )


def _spent(spend: Spend) -> Spent:
    return Spent(
        input_tokens=spend.input_tokens,
        cached_tokens=spend.cached_tokens,
        output_tokens=spend.output_tokens,
        cost_micros=spend.cost_micros,
    )
