"""Commands that make, list and change schedules."""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from functools import partial

from gateway.commands.command import Answer, Call, Handlers, parse_number
from gateway.contract import Button
from gateway.errors import Refused
from gateway.scheduler.recurrence import describe_recurrence
from gateway.schedules import Schedules
from gateway.schedules.grammar import EXAMPLE, split_addition, with_options
from gateway.schedules.schedules import Action
from gateway.sessions.keys import parse_key
from gateway.spool import CONFIGURED, Operation, RunState, ScheduleRow, ScheduleRun, ScheduleState, Spool
from gateway.text import excerpt
from gateway.text.plain import count, duration

TEXT_WIDTH = 60
RUNS_SHOWN = 10
_DONE = {
    Action.PAUSE: "is paused. /schedule resume {number} lets it go on.",
    Action.RESUME: "goes on.",
    Action.RUN: "runs now.",
    Action.DELETE: "is deleted.",
}


class ScheduleCommands:
    def __init__(self, schedules: Schedules, spool: Spool) -> None:
        self._schedules = schedules
        self._spool = spool

    def handlers(self) -> Handlers:
        return {
            "schedule list": self.list,
            "schedule add": self.add,
            "schedule show": self.show,
            "schedule history": self.history,
            **{f"schedule {action}": partial(self._change, action) for action in Action},
        }

    async def list(self, call: Call) -> Answer:
        _require(call)
        rows = await self._schedules.of_scope(call.routed.scope)
        if not rows:
            return Answer(text=f"There are no schedules here. To make one, write {EXAMPLE}")
        lines = [f"  {row.number}  {self._summary(row)}" for row in rows]
        return Answer(
            text="\n".join(["Schedules", *lines, "/schedule show <number> shows one"]),
            buttons=tuple(Button(label=f"Show {row.number}", command=f"/schedule show {row.number}") for row in rows),
        )

    async def add(self, call: Call) -> Answer:
        _require(call)
        when, options, prompt = split_addition(call.argument)
        recurrence = self._schedules.parse(when, options.get("zone", ""))
        about = with_options(self._schedules.content_of(call.inbound, prompt, recurrence), options)
        row = await self._schedules.prepare(about, call.routed.scope)
        return Answer(text=self._schedules.confirm(row), commit=partial(self._schedules.store, row))

    async def show(self, call: Call) -> Answer:
        row = await self._find(call, "show")
        about, check = row.about, row.about.check
        lines = [f"Schedule {row.number}: {self._summary(row)}"]
        if row.note:
            lines.append(f"Note: {row.note}")
        if about.agent:
            lines.append(f"Agent: {about.agent}")
        if row.session and about.is_apart:
            lines.append(f"Session: {parse_key(row.session)[1]}")
        if check is not None:
            lines.append(f"Check: {excerpt(check.command or check.url, 200)}")
        budget = [
            f"{about.tokens_per_run:,} tokens a run" if about.tokens_per_run else "",
            f"{about.tokens_per_day:,} tokens a day" if about.tokens_per_day else "",
            f"a cost of {about.cost_per_day:g} a day" if about.cost_per_day else "",
        ]
        if any(budget):
            lines.append(f"Budget: {', '.join(filter(None, budget))}")
        options = [
            "sends its text without a model" if about.delivers else "",
            "writes into the session of this chat" if not about.is_apart and not about.delivers else "",
            "skips times that were missed" if about.is_skipped_if_missed else "",
            f"runs up to {duration(timedelta(seconds=about.jitter))} late" if about.jitter else "",
        ]
        if any(options):
            lines.append(f"Options: {', '.join(filter(None, options))}")
        lines += ["", about.prompt] if about.prompt else []
        toggle = Action.RESUME if row.state is ScheduleState.PAUSED else Action.PAUSE
        actions = [Action.RUN, toggle, *([] if row.id.startswith(CONFIGURED) else [Action.DELETE])]
        buttons = [
            Button(label=f"{each.capitalize()} {row.number}", command=f"/schedule {each} {row.number}")
            for each in actions
        ]
        history = Button(label=f"History {row.number}", command=f"/schedule history {row.number}")
        return Answer(text="\n".join(lines), buttons=(*buttons, history))

    async def history(self, call: Call) -> Answer:
        row = await self._find(call, "history", ended=True)
        runs = await self._spool.schedule_runs(row.id, limit=RUNS_SHOWN)
        if not runs:
            return Answer(text=f"Schedule {row.number} has not run yet.")
        zone = self._schedules.zone_of(row)
        return Answer(
            text="\n".join([f"Runs of schedule {row.number}, newest first", *(_line(run, zone) for run in runs)])
        )

    async def _change(self, action: Action, call: Call) -> Answer:
        row = await self._find(call, action)
        operation = self._schedules.change(row, action)

        async def commit(operations: Sequence[Operation]) -> None:
            await self._spool.commit(operation, *operations, scope=row.scope)
            self._schedules.changed.set()

        text = f"Schedule {row.number} {_DONE[action].format(number=row.number)}"
        if row.is_running and action in {Action.PAUSE, Action.DELETE}:
            text += " A run is under way, and goes on. /stop ends it."
        if action is Action.RUN and (row.about.check is not None or row.failures):
            when = "when it works again" if row.failures else "if its check finds something"
            text += f" You hear from it {when}. /schedule history {row.number} shows how it went."
        return Answer(text=text, commit=commit)

    async def _find(self, call: Call, command: str, *, ended: bool = False) -> ScheduleRow:
        _require(call)
        number = parse_number(call.argument, f"/schedule {command} 2", shown_by="/schedules")
        rows = await self._schedules.of_scope(call.routed.scope, ended=ended)
        found = next((row for row in rows if row.number == number), None)
        if found is None:
            raise Refused(f"There is no schedule {number} here. /schedules lists the schedules.")
        return found

    def _summary(self, row: ScheduleRow) -> str:
        zone = self._schedules.zone_of(row)
        title = row.id.removeprefix(CONFIGURED) if row.id.startswith(CONFIGURED) else row.about.prompt
        parts = [_state(row, zone), describe_recurrence(row.about.when, zone), excerpt(title, TEXT_WIDTH)]
        return " · ".join(filter(None, parts))


def _require(call: Call) -> None:
    if not call.is_granted:
        raise Refused("Only owners can use schedules. An owner can give your role the right to.")


def _state(row: ScheduleRow, zone: tzinfo) -> str:
    if row.state is ScheduleState.PAUSED:
        return "paused"
    if row.is_running:
        return "running"
    if row.due_at is None:
        return "ended"
    due = f"{row.due_at.astimezone(zone):%a %d %b %Y, %H:%M}"
    return f"failing, again {due}" if row.failures else due


def _line(run: ScheduleRun, zone: tzinfo) -> str:
    started: datetime = run.started_at.astimezone(zone)
    times = f" {run.times} times" if run.times > 1 else ""
    session = f" · session {parse_key(run.session)[1]}" if run.session else ""
    tokens = f" · {count(run.tokens, 'token')}" if run.tokens else ""
    note = f" · {excerpt(run.note, 100)}" if run.note and run.state is not RunState.DONE else ""
    return f"  {started:%a %d %b, %H:%M:%S} · {run.state.value}{times}{session}{tokens}{note}"
