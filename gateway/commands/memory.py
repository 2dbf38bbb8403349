"""Commands that show and change the memory of a chat."""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from gateway.access.rights import Action, check_right
from gateway.access.rules import Live
from gateway.commands.command import Answer, Call, Handlers, parse_number
from gateway.errors import Refused
from gateway.memory import Memory, MemoryStore, Statement
from gateway.memory.queue import EditStatement, ForgetStatement, MemoryChange, MemoryChanges, change_operation
from gateway.memory.search import search_statements
from gateway.memory.statement import clean
from gateway.memory.store import MAX_TEXT
from gateway.text import excerpt
from gateway.turns.context import TurnContext

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_LISTED = 20
TEXT_WIDTH = 300
QUOTE_WIDTH = 80
NOTHING = "There is nothing in the memory of this chat yet. Ask me to remember something, or start a new session: /new"


class MemoryCommands:
    def __init__(self, live: Live, context: TurnContext, changes: MemoryChanges) -> None:
        self._live = live
        self._context = context
        self._changes = changes

    def handlers(self) -> Handlers:
        return {
            "memory": self.show,
            "memory search": self.search,
            "memory forget": self.forget,
            "memory edit": self.edit,
        }

    async def show(self, call: Call) -> Answer:
        memory = await self._read(call.routed.scope)
        if not memory.statements:
            return Answer(text="\n".join([NOTHING, *memory.problems]))
        return _listing("Memory of this chat (newest first)", memory.statements[::-1], memory)

    async def search(self, call: Call) -> Answer:
        words = excerpt(call.argument, QUOTE_WIDTH)
        if not words:
            raise Refused("What should I look for? Add some words, like /memory search lisbon.")
        memory = await self._read(call.routed.scope)
        found = await asyncio.to_thread(search_statements, memory.statements, call.argument)
        if not found:
            return Answer(text="\n".join([f"Nothing in the memory of this chat is about {words}.", *memory.problems]))
        return _listing(f"In the memory of this chat about {words}", found, memory)

    async def forget(self, call: Call) -> Answer:
        statement = await self._find(call, "/memory forget 3")
        change = ForgetStatement(scope=call.routed.scope, number=statement.number)
        return self._answer(f"Forgotten: {excerpt(statement.text, TEXT_WIDTH)}", change)

    async def edit(self, call: Call) -> Answer:
        statement = await self._find(call, "/memory edit 3 Ada lives in Porto.")
        number, _, text = call.argument.partition(" ")
        if not (text := clean(text)):
            raise Refused(f"What should it say? Add the text, like /memory edit {number} Ada lives in Porto.")
        if len(text) > MAX_TEXT:
            raise Refused(
                f"That is {len(text):,} characters, and a statement has up to {MAX_TEXT:,}. Send a shorter one."
            )
        change = EditStatement(scope=call.routed.scope, number=statement.number, text=text)
        return self._answer(f"Statement {statement.number} says now: {excerpt(text, TEXT_WIDTH)}", change)

    def _answer(self, text: str, change: MemoryChange) -> Answer:
        commit = partial(self._changes.commit, change.scope)
        return Answer(text=text, operations=(change_operation(change),), commit=commit)

    async def _find(self, call: Call, example: str) -> Statement:
        """Return the statement that the first word of the argument names."""
        check_right(self._live, call.inbound, Action.CHANGE_MEMORY, is_owner=call.is_owner)
        number = parse_number(call.argument.partition(" ")[0].removeprefix("#"), example, shown_by="/memory")
        statements = (await self._read(call.routed.scope)).statements
        found = next((each for each in statements if each.number == number), None)
        if found is None:
            raise Refused(f"There is no statement {number} in the memory of this chat. /memory shows the numbers.")
        return found

    async def _read(self, scope: str) -> Memory:
        """Return the memory of a scope, after every line of a person has got its number."""
        try:
            folder = await self._context.fetch_memory(scope)
            memory = await asyncio.to_thread(MemoryStore(folder).numbered)
        except OSError as error:
            log.warning("memory_unusable", file=error.filename, reason=error.strerror)
            raise Refused(
                "The memory of this chat can't be read now. Whoever runs this bot finds the reason in its log."
            ) from error
        await self._context.memory_may_have_changed(scope)
        return memory


def _listing(heading: str, found: Sequence[Statement], memory: Memory) -> Answer:
    lines = [_line(statement) for statement in found[:MAX_LISTED]]
    if (more := len(found) - len(lines)) > 0:
        lines.append(f"and {more} more. /memory search <words> finds some.")
    hint = "/memory forget <number> removes one, /memory edit <number> <text> changes one"
    return Answer(text="\n".join([heading, *lines, *memory.problems, hint]))


def _line(statement: Statement) -> str:
    sessions = sorted({source.session for source in statement.sources})
    origin = f" · session {', '.join(map(str, sessions))}" if sessions else ""
    noted = f" · noted {statement.noted}" if statement.noted else ""
    return f"{statement.number}  {excerpt(statement.text, TEXT_WIDTH)}{origin}{noted}"
