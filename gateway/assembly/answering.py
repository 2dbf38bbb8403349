"""The way from a message to its answer: intake, turns, errands; and the alarm, which speaks unasked."""

from dataclasses import dataclass

from gateway.access.pairing import Strangers
from gateway.assembly.agents import Agents
from gateway.assembly.chats import Chats
from gateway.assembly.ground import Ground
from gateway.commands import Desk
from gateway.commands.runner import Errands
from gateway.inbound.dispatcher import Work
from gateway.inbound.inbox import Queueing
from gateway.inbound.intake import Admission, Intake
from gateway.reminders import Alarm
from gateway.turns.busy import Meanwhile
from gateway.turns.context import Preparing
from gateway.turns.runner import Turns

__all__ = ["Answering", "open_answering"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    intake: Intake
    turns: Turns
    errands: Errands
    work: Work
    alarm: Alarm


def open_answering(ground: Ground, chats: Chats, agents: Agents, desk: Desk) -> Answering:
    live, delivery = ground.live, chats.delivery
    turns = _turns(ground, chats, agents, desk)
    errands = Errands(live=live, delivery=delivery, desk=desk, is_suspending=lambda: turns.is_suspending)
    return Answering(
        intake=_intake(ground, chats, desk),
        turns=turns,
        errands=errands,
        work=Work(turns, errands, chats.signs),
        alarm=Alarm(live, ground.spool, delivery, desk.reminders, now=ground.now),
    )


def _turns(ground: Ground, chats: Chats, agents: Agents, desk: Desk) -> Turns:
    preparing = Preparing(
        live=ground.live,
        roster=agents.current,
        sessions=ground.sessions,
        meter=agents.meter,
        compactions=agents.compactions,
        files=chats.files,
        now=ground.now,
    )
    return Turns(
        live=ground.live,
        preparing=preparing,
        sessions=ground.sessions,
        delivery=chats.delivery,
        meanwhile=Meanwhile(ground.live, desk.lanes, chats.signs),
        approvals=chats.approvals,
        reminders=desk.reminders,
    )


def _intake(ground: Ground, chats: Chats, desk: Desk) -> Intake:
    strangers = Strangers(ground.live, desk.pairing, now=ground.now)
    return Intake(
        live=ground.live,
        spool=ground.spool,
        delivery=chats.delivery,
        desk=desk,
        admission=Admission(ground.live, strangers, now=ground.now),
        queueing=Queueing(
            live=ground.live,
            spool=ground.spool,
            desk=desk,
            delivery=chats.delivery,
            signs=chats.signs,
            files=chats.files.reception,
        ),
    )
