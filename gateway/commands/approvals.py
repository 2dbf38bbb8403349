"""Commands that answer what a turn asks before it uses a tool. Buttons send them; so does a plain yes or no."""

from functools import partial

from gateway.commands.command import Answer, Call, Command, Kind
from gateway.errors import Refused
from gateway.turns.approvals import Decision

__all__ = ["APPROVE", "DENY"]

_SAID = {Decision.APPROVED: "Yes: {tool} may run.", Decision.DENIED: "No: {tool} will not run."}


async def _decide(call: Call, decision: Decision) -> Answer:
    approvals = call.desk.approvals
    question = approvals.find(call.routed.scope, call.argument, call.session)
    if not approvals.may_answer(question, call.inbound, is_owner=call.is_owner):
        raise Refused("Only the person whose message this is about, or an owner, may answer that.")
    answer = Answer(text=_SAID[decision].format(tool=question.call.name))
    await approvals.settle(question, decision, by=call.inbound.sender.id, also=call.settle(answer))
    return answer


APPROVE = Command(
    name="approve",
    summary="Allow what the agent has asked for",
    run=partial(_decide, decision=Decision.APPROVED),
    kind=Kind.STRUCTURAL,
)
DENY = Command(
    name="deny",
    summary="Refuse what the agent has asked for",
    run=partial(_decide, decision=Decision.DENIED),
    kind=Kind.STRUCTURAL,
)
