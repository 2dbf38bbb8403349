"""A daemon with something of everything that the console shows. All texts try to become HTML."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from msgspec.structs import replace

from channels.loopback import LoopbackChannel
from gateway.access.guests import Applicant, Guest, Person, save_fact
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.contract import Sender
from gateway.daemon import Daemon
from gateway.spool import AddUsage, InboxState, MarkDead, SetInboxState
from tests.admin_api.harness import administered
from tests.agent.scripted import ScriptedProvider
from tests.api.harness import Api
from tests.daemon.harness import accepted
from tests.daemon.tools import Rocket, agent, launch
from tests.polling import until
from tests.spool.samples import send

EVIL = "<img src=x onerror=\"document.body.dataset.hacked='yes'\">"
TITLE = f"Fix the router {EVIL}"
PROMPT = f"Why is the kitchen light on? {EVIL}"
ANSWER = f"Because the hallway sensor reports motion. {EVIL}"
CONFIG = """\
[gateway]
data_dir = "{home}/data"
timezone = "UTC"

[http]
port = 0

[limits]
tokens_per_turn = 200000

[channels.loopback]

[channels.terminal]
enabled = false
"""


class Speaker:
    """A model that says one word after the other, for as long as the test gives it some."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[str] = asyncio.Queue()

    def say(self, *words: str) -> None:
        for word in words:
            self._words.put_nowait(word)

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        while True:
            yield TextDelta(text=await self._words.get())


@dataclass(frozen=True, kw_only=True)
class Console:
    """The daemon of the console, and what a browser needs to get in."""

    owner: Api
    home: Path

    @property
    def daemon(self) -> Daemon:
        return self.owner.daemon

    @property
    def url(self) -> str:
        return f"{self.daemon.server.url}/console"

    def link(self) -> str:
        """Return a link that signs one browser in."""
        return f"{self.url}#code={self.daemon.auth.mint_code()}"

    @property
    def loopback(self) -> LoopbackChannel:
        channel = self.daemon.channels.by_identity["loopback", "default"]
        assert isinstance(channel, LoopbackChannel)
        return channel

    async def session_with(self, words: str) -> str:
        """Return the id of the session whose title has these words."""
        _, found = await self.owner.call("GET", f"/api/sessions?q={words}")
        return str(found["sessions"][0]["id"])


@asynccontextmanager
async def console(
    home: Path, config: str = CONFIG, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> AsyncIterator[Console]:
    """Run a daemon with a few conversations, an open question, people, usage, errors and dead letters."""
    usage = TokenUsage(input_tokens=1200, output_tokens=340)
    provider = ScriptedProvider(
        [TextDelta(text=ANSWER), usage],
        [TextDelta(text="I'll look into that."), launch(EVIL), usage],
        [TextDelta(text="Done."), usage],
    )
    async with administered(home, config, before=agent(provider, Rocket()), now=now) as owner:
        found = Console(owner=owner, home=home)
        ada = Sender(id="ada", name=f"Ada {EVIL}", is_owner=True)
        await found.loopback.say(PROMPT, peer="ada", sender=ada)
        await found.loopback.hear_message()
        await found.loopback.say("Start the rocket, please", peer="bob", sender=replace(ada, id="bob", name="Bob"))
        await until(lambda: owner.daemon.approvals.open_questions)
        session = await owner.start(title=TITLE)
        await owner.call("POST", f"/api/sessions/{session['id']}/reply", {"text": f"I restarted it. {EVIL}"})
        plan = {"chat": "loopback:ada", "when": "daily 8:00", "zone": "UTC", "prompt": f"Look at the oven {EVIL}"}
        status, told = await owner.call("POST", "/api/schedules", plan)
        assert status in {200, 201}, told
        await _add_people(owner, now())
        await _add_usage(owner, now())
        await _add_dead_letters(owner, now())
        structlog.get_logger().error("pump_failed", where=f"Kitchen {EVIL}", tries=3)
        yield found


async def _add_people(owner: Api, now: datetime) -> None:
    book = owner.daemon.live.guest_book
    eve = Person(channel="loopback", account="default", sender="eve")
    carol = Person(channel="loopback", account="default", sender="carol")
    applicant = Applicant(person=eve, name=f"Eve {EVIL}", peer="eve", code="ABCD-EFGH", asked_at=now)
    guest = Guest(person=carol, name="Carol", peer="carol", since=now - timedelta(days=3))
    await owner.daemon.spool.commit(save_fact(applicant), save_fact(guest))
    book.applicants[eve], book.guests[carol] = applicant, guest


async def _add_usage(owner: Api, now: datetime) -> None:
    today = now.date()
    people = ("telegram:ada", "telegram:bob", f"web:{EVIL}")
    await owner.daemon.spool.commit(
        *(
            AddUsage(
                day=(today - timedelta(days=day)).isoformat(),
                person=person,
                model="gpt-5.4" if number % 2 else "claude-sonnet-5-5",
                agent=("main", "coder", "")[(day + number) % 3],
                input_tokens=4000 * (1 + (day * 7 + number * 5) % 11),
                cached_tokens=1000,
                output_tokens=900 * (1 + (day + number) % 5),
                cost_micros=21_000 * (1 + (day * 3 + number) % 7),
            )
            for day in range(20)
            for number, person in enumerate(people)
        )
    )


async def _add_dead_letters(owner: Api, now: datetime) -> None:
    dead = SetInboxState(turn="t1", state=InboxState.DEAD, note="It crashed 3 times.")
    await owner.daemon.spool.commit(accepted("t1", f"Where is my parcel? {EVIL}"), dead)
    gone = MarkDead(key="k1", reason="The chat is gone.")
    await owner.daemon.spool.commit(send("k1", f"Here it is. {EVIL}", now), gone)
