"""The briefing: all that a model is given for a turn. What changes rarely stands in front: providers can cache it."""

import re
from datetime import date, datetime
from functools import lru_cache

from msgspec import Struct

from gateway.agent.protocol import Prompt
from gateway.agent.senders import plain_name
from gateway.contract import PeerKind
from gateway.job import Job
from gateway.roster import Agent
from gateway.sessions import SessionManager

__all__ = ["Briefing", "Facts", "brief", "system_prompt"]

_PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Briefing(Struct, frozen=True, kw_only=True):
    prompt: Prompt
    before: int
    """How many of the prompt's messages are from before the turn."""


class Facts(Struct, frozen=True, kw_only=True):
    """What a prompt may name as `{{date}}` and so on; what it does not name is told after it."""

    agent: str
    channel: str
    chat: str
    sender: str
    """Empty where several people talk: then each message tells whose it is."""
    workspace: str
    date: str
    """Without the time, which would make every prompt a new one."""
    zone: str = "UTC"


async def brief(
    job: Job, agent: Agent, sessions: SessionManager, *, notes: str, today: datetime, is_shared: bool
) -> Briefing:
    before, turn = await sessions.divided(job.session, turn=job.turn)
    prompt = Prompt(
        system=system_prompt(agent.system, _facts(job, agent, today, is_shared=is_shared), notes),
        messages=[*before, *turn],
        tools=agent.toolbox.specs(),
        model=agent.chosen_model,
    )
    return Briefing(prompt=prompt, before=len(before))


def _facts(job: Job, agent: Agent, today: datetime, *, is_shared: bool) -> Facts:
    address, sender = job.inbound.address, job.inbound.sender
    return Facts(
        agent=agent.name,
        channel=address.channel,
        chat="a direct chat" if address.kind is PeerKind.DIRECT else f"a {address.kind}",
        sender="" if is_shared else plain_name(sender.name or sender.id),
        workspace=agent.workspace.name,
        date=_named(today.date()),
        zone=today.tzname() or "",
    )


@lru_cache(maxsize=4)
def _named(day: date) -> str:
    return f"{day:%A, %Y-%m-%d}"


@lru_cache(maxsize=256)
def system_prompt(template: str, facts: Facts, notes: str = "") -> str:
    """Fill in the places that `template` has, and tell after it the notes and the facts that it has no place for.

    It is the same for many turns, so the last ones are kept.
    """
    values = {
        "agent": facts.agent,
        "channel": facts.channel,
        "sender": facts.sender or "several people",
        "workspace": facts.workspace,
        "date": facts.date,
    }
    places = {name for name in _PLACE.findall(template) if name in values}
    # In one pass: a value that itself looks like a place stays as it is.
    told = _PLACE.sub(lambda place: values.get(place[1], place[0]), template)
    return "\n\n".join(filter(None, (told.rstrip(), notes, _circumstances(facts, places))))


def _circumstances(facts: Facts, told: set[str]) -> str:
    company = f'with "{facts.sender}"' if facts.sender else "with several people; each message begins with its sender"
    where = f"This is {facts.chat} on {facts.channel}"
    sentences = [
        where if "sender" in told else f"{where} {company}",
        "" if "workspace" in told else f'Your workspace is the folder "{facts.workspace}"',
        "" if "date" in told else f"Today is {facts.date} ({facts.zone})",
    ]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)
