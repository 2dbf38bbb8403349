"""The briefing: all that a model is given for a turn."""

from gateway.agent.provider import Prompt
from gateway.jobs import Job
from gateway.roster import Agent
from gateway.sessions import SessionManager

__all__ = ["brief"]


async def brief(job: Job, agent: Agent, sessions: SessionManager) -> Prompt:
    return Prompt(
        system=agent.system,
        messages=await sessions.history(job.session, turn=job.turn),
        tools=agent.toolbox.specs(),
        model=agent.model,
    )
