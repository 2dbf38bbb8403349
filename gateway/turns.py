"""A turn: one agent run that answers one accepted message, writes each finished step down and delivers the answer."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from time import monotonic

import msgspec
import structlog
from structlog.contextvars import bound_contextvars

from gateway.agent.events import Done, Event, StepDone, TextDelta, ToolFinished
from gateway.agent.loop import converse
from gateway.agent.provider import Prompt, Usage
from gateway.agent.tools import ToolContext
from gateway.contract import Outbound, OutboundKind
from gateway.delivery import Delivery, Draft
from gateway.errors import ProviderFailed, Refused
from gateway.lanes import Job
from gateway.live import Live
from gateway.roster import Roster
from gateway.sessions import Entry, SessionManager, TurnOutcome, entries
from gateway.sessions.names import file_name

__all__ = ["SHUTTING_DOWN", "Turns"]

log = structlog.get_logger()

SHUTTING_DOWN = "Gatehouse is shutting down before this was answered. Please send it again later."


@dataclass(slots=True, kw_only=True)
class _Course:
    """What has become of a turn so far."""

    started: float = field(default_factory=monotonic)
    written: list[str] = field(default_factory=list)
    """Steps that are in the transcript already."""
    pending: list[str] = field(default_factory=list)
    streaming: str = ""
    outcome: TurnOutcome = TurnOutcome.ANSWERED
    has_begun: bool = False
    model: str = ""
    usage: entries.Usage | None = None
    """Of the model's last step."""
    tools: int = 0
    first_token_ms: float | None = None

    @property
    def text(self) -> str:
        return _paragraphs(*self.written, *self.pending, self.streaming)

    @property
    def unwritten(self) -> str:
        return _paragraphs(*self.pending, self.streaming)

    @property
    def age_ms(self) -> float:
        return round((monotonic() - self.started) * 1000, 1)

    def heard(self, delta: str) -> None:
        self.streaming += delta
        if self.first_token_ms is None:
            self.first_token_ms = self.age_ms

    def ended(self, outcome: TurnOutcome, sentence: str) -> None:
        """End other than by an answer: what was said so far stays, and the sentence tells how it ended."""
        self.outcome = outcome
        self.pending += [self.streaming, f"*{sentence}*"]
        self.streaming = ""


class Turns:
    """`run` raises nothing but cancellation: whatever goes wrong becomes the visible end of that one turn."""

    def __init__(
        self,
        *,
        live: Live,
        roster: Callable[[], Roster],
        sessions: SessionManager,
        delivery: Delivery,
        memory: Path,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._roster = roster
        self._sessions = sessions
        self._delivery = delivery
        self._memory = memory
        self._now = now
        # Waiters are served first come, first served, and each turn asks anew: a long queue delays others by one slot.
        self._slots = asyncio.Semaphore(live.settings.gateway.max_parallel_turns)

    async def run(self, job: Job) -> None:
        address = job.inbound.address
        with bound_contextvars(channel=address.channel, chat=address.peer, session=job.session, turn=job.turn):
            course = _Course()
            limit = self._live.settings.gateway.turn_timeout
            try:
                async with self._slots, asyncio.timeout(limit):
                    await self._answer(job, course)
            except asyncio.CancelledError as stop:
                course.ended(TurnOutcome.STOPPED, str(stop) or "Stopped.")
                raise
            except TimeoutError:
                course.ended(
                    TurnOutcome.FAILED,
                    f"This took longer than {limit:g} seconds and was stopped. Try a smaller question.",
                )
            except (ProviderFailed, Refused) as failure:
                course.ended(TurnOutcome.FAILED, str(failure))
            except Exception:  # One turn's bug must not end the others, nor leave its sender in silence.
                log.exception("turn_crashed")
                course.ended(
                    TurnOutcome.FAILED, "Something went wrong inside Gatehouse. Its log says what; please try again."
                )
            finally:
                await self._finish(job, course)

    async def _answer(self, job: Job, course: _Course) -> None:
        agent = self._roster()[job.agent]
        sender = job.inbound.sender
        await self._write(
            job,
            entries.User(
                content=job.inbound.text, sender=sender.id, sender_name=sender.name, event_id=job.inbound.event_id
            ),
        )
        course.has_begun = True
        course.model = agent.model or ""
        prompt = Prompt(
            system=agent.system,
            messages=await self._sessions.history(job.session, turn=job.turn),
            tools=agent.toolbox.specs(),
            model=agent.model,
        )
        context = ToolContext(workspace=agent.workspace, notes=self._memory / file_name(job.scope), now=self._now)
        async with self._delivery.drafting(_reply(job, ""), key=job.turn) as draft:
            events = converse(
                prompt,
                provider=agent.provider,
                toolbox=agent.toolbox,
                context=context,
                max_iterations=agent.max_iterations,
            )
            async with aclosing(events):
                async for event in events:
                    await self._follow(job, event, course, draft)

    async def _follow(self, job: Job, event: Event, course: _Course, draft: Draft) -> None:
        """Write down what `event` has settled before the loop goes on: a tool call before its tool runs."""
        match event:
            case TextDelta(text=delta):
                course.heard(delta)
                draft.show(course.text)
            case StepDone(tool_calls=(), usage=usage):
                course.usage = _usage(usage)
            case StepDone(text=text, tool_calls=calls, usage=usage):
                course.written.append(text)
                course.streaming = ""
                # Also without text: it says what the step cost.
                said = entries.Assistant(content=text, model=course.model, usage=_usage(usage))
                uses = [entries.ToolUse(tool_use_id=call.id, name=call.name, input=call.input) for call in calls]
                await self._write(job, said, *uses)
            case ToolFinished(outcome=outcome):
                course.tools += 1
                await self._write(
                    job,
                    entries.ToolResult(tool_use_id=outcome.id, output=outcome.output, is_error=outcome.is_error),
                )
            case Done(text=text):
                course.streaming = text

    async def _finish(self, job: Job, course: _Course) -> None:
        if course.has_begun:
            await self._write_end(job, course)
        reply = replace(_reply(job, course.text), is_failure=course.outcome is TurnOutcome.FAILED)
        delivered = await self._delivery.say(reply, key=job.turn)
        log.info(
            "message_handled",
            outcome=course.outcome,
            delivered=delivered,
            tools=course.tools,
            first_token_ms=course.first_token_ms,
            took_ms=course.age_ms,
        )

    async def _write_end(self, job: Job, course: _Course) -> None:
        answer = entries.Assistant(content=course.unwritten, model=course.model, usage=course.usage)
        try:
            await self._write(job, answer, entries.TurnEnd(outcome=course.outcome))
        except Refused as trouble:  # The person gets the answer all the same, and is told.
            log.error("answer_not_stored", reason=str(trouble))  # noqa: TRY400 - the sentence says it all
            course.ended(TurnOutcome.FAILED, f"This answer is not in the history: {trouble}")

    async def _write(self, job: Job, *steps: Entry) -> None:
        await self._sessions.append(job.session, [msgspec.structs.replace(step, turn=job.turn) for step in steps])


def _usage(usage: Usage | None) -> entries.Usage | None:
    if usage is None:
        return None
    return entries.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text.strip())


def _reply(job: Job, text: str) -> Outbound:
    return Outbound(
        address=job.inbound.address,
        text=text,
        kind=OutboundKind.REPLY,
        reply_to=job.inbound.message_id,
        session=job.number,
    )
