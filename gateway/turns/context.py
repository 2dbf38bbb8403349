"""Turn context: chooses the agent of a turn and builds its prompt."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from msgspec import Struct

from gateway.access.role_table import AskerRoles, Limits
from gateway.access.rules import Live, is_shared
from gateway.agent.protocol import Prompt
from gateway.agent.senders import sanitize_name
from gateway.contract import Inbound, PeerKind
from gateway.conversation import Message
from gateway.errors import Refused
from gateway.files.pictures import with_pictures
from gateway.files.store import FileStore
from gateway.job import Job
from gateway.mcp.server import McpServers
from gateway.memory.prompt import MemoryCache
from gateway.memory.shared import SharedMemory
from gateway.memory.store import memory_folder
from gateway.sessions import SessionManager
from gateway.spool import Spool, utc_day
from gateway.spool.spool import retry_while_unavailable
from gateway.turns.agents import AgentRegistry, ConfiguredAgent, narrowed
from gateway.turns.compaction import OVERFLOW, CompactionRequest, Compactor
from gateway.turns.recall import Recall
from gateway.turns.usage import Meter, MeteredProvider, RunBudget, person_of

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class PromptFacts(Struct, frozen=True, kw_only=True):
    """Facts that a prompt may name, as in `{{date}}`. Those that it does not name are added after it."""

    agent: str
    channel: str
    chat: str
    sender: str
    """Empty if several people write. Then each message names its sender."""
    workspace: str
    date: str
    """Without the time, so that prompts stay the same for a day and can be cached."""
    zone: str = "UTC"


@lru_cache(maxsize=256)
def system_prompt(template: str, facts: PromptFacts, memory: str = "", skills: str = "") -> str:
    """Fill in the placeholders of `template`; add skills, memory, and the facts without a placeholder, after it."""
    values = {
        "agent": facts.agent,
        "channel": facts.channel,
        "sender": facts.sender or "several people",
        "workspace": facts.workspace,
        "date": facts.date,
    }
    named = {name for name in _PLACEHOLDER.findall(template) if name in values}
    # In one pass, so that a value that looks like a placeholder stays as it is.
    filled = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
    where = f"This is {facts.chat} on {facts.channel}"
    company = f'with "{facts.sender}"' if facts.sender else "with several people; each message begins with its sender"
    sentences = [
        where if "sender" in named else f"{where} {company}",
        "" if "workspace" in named else f'Your workspace is "{facts.workspace}"',
        "" if "date" in named else f"Today is {facts.date} ({facts.zone})",
    ]
    rest = " ".join(f"{sentence}." for sentence in sentences if sentence)
    return "\n\n".join(filter(None, (filled.rstrip(), skills, memory, rest)))


_memory_folder = lru_cache(maxsize=512)(memory_folder)


class TurnContext:
    def __init__(
        self,
        *,
        live: Live,
        agents: AgentRegistry,
        mcp: McpServers,
        sessions: SessionManager,
        meter: Meter,
        compactor: Compactor,
        store: FileStore,
        spool: Spool,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._agents = agents
        self._mcp = mcp
        self._sessions = sessions
        self._meter = meter
        self._compactor = compactor
        self._store = store
        self._now = now
        self._data_dir = live.settings.gateway.data_dir
        self._memory = MemoryCache(self._data_dir / "memory")
        self._spool = spool
        self.shared_memory = SharedMemory(spool, self._memory.forget)
        self.recall = Recall(live, sessions, self.shared_memory)

    def now(self) -> datetime:
        """Return the time in the configured time zone."""
        return self._now().astimezone(self._live.settings.gateway.zone)

    def memory_folder(self, scope: str) -> Path:
        """Return the folder with the memory of a scope."""
        return _memory_folder(self._data_dir, scope)

    async def fetch_memory(self, scope: str) -> Path:
        """Return the folder with the memory of a scope. In a cluster, it is read from the database."""
        folder = self.memory_folder(scope)
        await self.shared_memory.fetch(scope, folder)
        return folder

    async def memory_may_have_changed(self, scope: str) -> None:
        """Call this after a tool of a scope has run, and after every other change of its memory."""
        folder = self.memory_folder(scope)
        self._memory.forget(folder)
        await self.shared_memory.store(scope, folder)

    async def choose_agent(self, job: Job, roles: Callable[[], AskerRoles]) -> tuple[ConfiguredAgent, MeteredProvider]:
        """Return the agent that answers, and its provider, charged to the sender.

        `roles` are those of the people whom the turn answers. Raises `Refused` if the agent is not for them.
        """
        # Waits briefly for MCP servers that have just been started: a resumed turn may need one of their tools.
        if self._mcp.servers:
            await self._mcp.wait_ready()
        await self._agents.refresh_skills()
        session = await self._sessions.load_meta(job.session)
        agent = narrowed(self._agents.chosen(job.agent, session), roles)
        limits = partial(self.check_roles, agent, roles, (session.repo, session.workspace))
        provider = self._meter.open_provider(
            agent,
            person_of(self._live.settings, job.inbound),
            limits=limits,
            # The model has to know who wrote what if several people may write in the session.
            names_senders=is_shared(self._live, job.inbound.address, job.inbound.sender),
            summarize=partial(self._summarize, job, agent, limits),
            budget=None if job.inbound.scheduled is None else await self._budget(job.inbound.scheduled.id),
        )
        limits()
        return agent, provider

    async def _budget(self, schedule: str) -> RunBudget | None:
        """Return the budget of a schedule, of which a part may be spent. None if the schedule is gone."""
        row = await retry_while_unavailable(partial(self._spool.find_schedule, schedule))
        if row is None:
            return None
        is_today = row.spent_day == utc_day(self._now())
        return RunBudget(
            tokens_per_run=row.about.tokens_per_run,
            tokens_per_day=row.about.tokens_per_day,
            cost_per_day=row.about.cost_per_day,
            spent_tokens=row.spent_tokens if is_today else 0,
            spent_micros=row.spent_micros if is_today else 0,
        )

    def check_roles(
        self, agent: ConfiguredAgent, roles: Callable[[], AskerRoles], folders: Sequence[str | None]
    ) -> Limits:
        """Return the budget of the people as it is now. Raises `Refused` if agent, model or folders are not for them.

        Called before each request of a turn, so that a change of their role holds in a running turn.
        """
        asker = roles()
        asker.check_place(agent.name, filter(None, folders))
        if agent.model is not None and not asker.allows_model(agent.model, agent.info.name):
            raise Refused(
                f"The model {agent.model} is no longer for you, so I stopped. Please send your message again."
            )
        return asker.limits(self._live.settings.limits)

    async def build_prompt(self, job: Job, agent: ConfiguredAgent) -> tuple[Prompt, int]:
        """Return the prompt, and how many of its messages are older than the turn.

        The messages of the turn are read from the transcript, so they must have been committed.
        """
        # The system prompt and the older messages are the same in each turn of a day, so providers can cache them.
        session = self._sessions.find(job.session)
        about = session.title if session is not None else ""
        system = await self.system_prompt(job.inbound, job.scope, agent, about)
        before, turn = await self._sessions.split_history(job.session, turn=job.turn)
        messages: Sequence[Message] = [*before, *turn]
        if any(message.pictures for message in messages):
            messages = await with_pictures(messages, self._store, sees=agent.info.sees_images)
        prompt = Prompt(
            system=system,
            messages=messages,
            tools=agent.toolbox.specs(),
            model=agent.chosen_model,
        )
        return prompt, len(before)

    async def system_prompt(self, inbound: Inbound, scope: str, agent: ConfiguredAgent, about: str = "") -> str:
        """Return the system prompt for a message of `scope`, with the memory of the scope and its instructions.

        `about` is the subject whose statements are preferred. It has to stay the same in a session: the system prompt
        begins each request, and providers cache what stays the same.
        """
        folder = await self.fetch_memory(scope)
        memory = await self._memory.text(folder, self._live.settings.memory.prompt_chars, about)
        address, sender, today = inbound.address, inbound.sender, self.now()
        facts = PromptFacts(
            agent=agent.name,
            channel=address.channel,
            chat="a direct chat" if address.kind is PeerKind.DIRECT else f"a {address.kind}",
            sender="" if is_shared(self._live, address, sender) else sanitize_name(sender.name or sender.id),
            workspace=agent.workspace.name,
            date=f"{today:%A, %Y-%m-%d}",
            zone=today.tzname() or "",
        )
        system = system_prompt(agent.system, facts, memory, agent.skills().text)
        return f"{system}\n\n{inbound.instructions}" if inbound.instructions else system

    async def _summarize(self, job: Job, agent: ConfiguredAgent, limits: Callable[[], Limits]) -> Sequence[Message]:
        person = person_of(self._live.settings, job.inbound)
        request = CompactionRequest(session=job.session, agent=agent, person=person, limits=limits, keep=OVERFLOW)
        await self._compactor.compact(request)
        before, _ = await self._sessions.split_history(job.session, turn=job.turn)
        return before
