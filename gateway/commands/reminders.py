"""Commands that list and cancel reminders."""

from collections.abc import Callable
from datetime import datetime

from gateway.commands.command import Answer, Call, Handlers, is_number
from gateway.contract import Button
from gateway.errors import Refused
from gateway.reminders import Reminders
from gateway.spool import CancelReminder
from gateway.text import excerpt

TEXT_WIDTH = 80


class ReminderCommands:
    def __init__(self, reminders: Reminders, *, now: Callable[[], datetime]) -> None:
        self._reminders = reminders
        self._now = now

    def handlers(self) -> Handlers:
        return {"reminders": self.list, "reminders cancel": self.cancel}

    async def list(self, call: Call) -> Answer:
        rows = sorted(await self._reminders.of_scope(call.routed.scope), key=lambda row: row.due_at)
        if not rows:
            return Answer(text="There are no reminders here. Ask me to remind you of something.")
        lines = []
        for row in rows:
            due = f"{row.due_at.astimezone(self._reminders.zone):%a %d %b %Y, %H:%M}"
            repeats = f" · cron {row.cron}" if row.cron else ""
            lines.append(f"  {row.number}  {due}{repeats} · {excerpt(row.about.text, TEXT_WIDTH)}")
        return Answer(
            text="\n".join(["Reminders", *lines, "/reminders cancel <number> cancels one"]),
            buttons=tuple(
                Button(label=f"Cancel {row.number}", command=f"/reminders cancel {row.number}") for row in rows
            ),
        )

    async def cancel(self, call: Call) -> Answer:
        if not is_number(call.argument):
            raise Refused("Which one? Add its number, like /reminders cancel 2. /reminders shows the numbers.")
        number = int(call.argument)
        rows = await self._reminders.of_scope(call.routed.scope)
        found = next((row for row in rows if row.number == number), None)
        if found is None:
            raise Refused(f"There is no reminder {number} here. /reminders lists the reminders.")
        if not self._reminders.may_cancel(found, call.inbound, is_owner=call.is_owner):
            raise Refused("Only the person who asked for that reminder, or an owner, may cancel it.")
        return Answer(
            text=f"Cancelled reminder {number}: {excerpt(found.about.text, TEXT_WIDTH)}",
            operations=(CancelReminder(id=found.id, at=self._now()),),
        )
