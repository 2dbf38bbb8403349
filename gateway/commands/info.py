"""Commands about the gateway: `/help`, `/status`, `/usage`, `/whoami` and `/restart`."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.access.roles import role_in, roles_of_all
from gateway.access.rules import Live
from gateway.commands.agents import agent_of
from gateway.commands.command import Answer, Call, Handlers
from gateway.commands.registry import usable_commands
from gateway.errors import Refused
from gateway.sessions import SessionManager, current_plan
from gateway.spool import Operation, SetFact, Spool, UsageTotal
from gateway.text.plain import count
from gateway.turns.agents import AgentRegistry
from gateway.turns.approvals import Approvals
from gateway.turns.usage import Meter, person_of

MAX_PEOPLE = 10
RESTARTED_BY = "restarted_by"
"""The fact in the spool that names the chat to tell about the next start."""
_CENT = 0.01
_MICROS = 1_000_000
GREETING = (
    "Hello! Send me a message, and I'll answer.\n"
    "/new starts another session, and /stop ends an answer that takes too long.\n"
    "/help lists all commands."
)


class InfoCommands:
    """`describe_gateway` returns a sentence about the whole gateway; `restart` asks the daemon to restart."""

    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        agents: AgentRegistry,
        approvals: Approvals,
        meter: Meter,
        spool: Spool,
        describe_gateway: Callable[[], str],
        restart: Callable[[], None],
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._agents = agents
        self._approvals = approvals
        self._meter = meter
        self._spool = spool
        self._describe_gateway = describe_gateway
        self._restart = restart

    def handlers(self) -> Handlers:
        return {
            "start": self.start,
            "help": self.help,
            "status": self.status,
            "usage": self.usage,
            "whoami": self.whoami,
            "restart": self.restart,
        }

    async def start(self, _call: Call) -> Answer:
        """Greet a person who opens the chat for the first time. Some platforms send this command for them."""
        return Answer(text=GREETING)

    async def help(self, call: Call) -> Answer:
        usable = usable_commands(self._live, call.inbound.address, call.inbound.sender, call.inbound.guild)
        rows = [f"/{command.name} {command.arguments}".rstrip() + f" - {command.summary}" for command in usable]
        return Answer(
            text="\n".join([*rows, "Everything else goes to the agent. Start with // to send text beginning with /."])
        )

    async def status(self, call: Call) -> Answer:
        session = self._sessions.active(call.routed.scope)
        agent = agent_of(self._agents, call, session)
        here = f"Session {session.number}, {count(session.messages, 'message')}." if session else "No session yet."
        lines = [f"{here} Agent: {agent.name}. Model: {agent.info.name}."]
        if session is not None and session.repo:
            lines.append(f"Repository: {session.repo}.")
        if session is not None and not agent.is_coding:
            size = self._meter.size(agent, await self._sessions.history(session.key))
            limit = self._meter.budget(agent)
            lines.append(f"Context: about {size:,} of {limit:,} tokens ({100 * size // limit} %).")
        if session is not None:
            if session.spent.tokens:
                lines.append(f"This session: {describe_usage(session.spent)}.")
            plan = current_plan((await self._sessions.load(session.key)).entries)
            marks = {"completed": "✓", "in_progress": "▸"}
            lines += [f"  {marks.get(step.status, '·')} {step.content}" for step in plan.steps] if plan else []
        questions = self._approvals.in_chat(call.routed.scope, call.inbound.address)
        lines += [f"Waiting for your approval: may I use {question.call.name}?" for question in questions]
        return Answer(text="\n".join([*lines, self._describe_gateway()]))

    async def usage(self, call: Call) -> Answer:
        today = await self._meter.daily.today(person_of(self._live.settings, call.inbound))
        limits = roles_of_all(self._live, [call.inbound]).limits(self._live.settings.limits)
        limit, cost = limits.tokens_per_day.value, limits.cost_per_day.value
        left = f"; {max(0, limit - today.tokens):,} of {limit:,} tokens are left" if limit else ""
        if cost:
            left += f"; {max(0.0, cost - today.cost_micros / _MICROS):.2f} of {cost:.2f} can still be spent"
        lines = [f"You, today (UTC): {describe_usage(today)}{left}."]
        if (session := self._sessions.active(call.routed.scope)) is not None:
            lines.append(f"This session: {describe_usage(session.spent)}.")
        if call.is_owner:
            total, people = await self._meter.daily.totals(MAX_PEOPLE)
            lines.append(f"Everyone, today: {describe_usage(total)}{'. Highest usage:' if people else '.'}")
            lines += [f"  {person}: {describe_usage(used)}" for person, used in people]
        return Answer(text="\n".join(lines))

    async def whoami(self, call: Call) -> Answer:
        sender = call.inbound.sender
        role = role_in(self._live, call.inbound)
        who = f"You are {sender.name or sender.id} (id {sender.id} on {call.inbound.address.channel}), {role.name}."
        return Answer(text="\n".join([who, *role.describe()]))

    async def restart(self, call: Call) -> Answer:
        if not call.is_granted:
            raise Refused("Only an owner may restart the gateway.")

        async def commit(operations: Sequence[Operation]) -> None:
            # The fact must be committed before the shutdown begins, or the next start would greet no one.
            await self._spool.commit(*operations)
            self._restart()

        restarted_by = msgspec.json.encode(call.inbound.address).decode()
        return Answer(
            text="Restarting. I'll tell you here when I'm back.",
            operations=(SetFact(name=RESTARTED_BY, value=restarted_by),),
            commit=commit,
        )


def describe_usage(used: UsageTotal) -> str:
    """Return tokens and cost as text. The cost is in the currency of the configured prices."""
    cached = f" ({used.cached_tokens:,} cached)" if used.cached_tokens else ""
    cost = used.cost_micros / _MICROS
    price = f", cost {cost:.2f}" if cost >= _CENT else f", cost {cost:.4f}"
    return f"{used.input_tokens:,} tokens read{cached}, {used.output_tokens:,} written{price if cost else ''}"
