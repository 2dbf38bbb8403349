"""Coding agents in the crash tests: their daemons, and the checks that hold after any death of the daemon."""

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from tests.acp.harness import SCRIPTED_AGENT, make_repo
from tests.crash.checks import Allowed, file_problems, repeat_problems, spool_problems
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import daemons
from tests.crash.fake_platform import Event, FakePlatform, Shown
from tests.crash.harness import CrashHarness
from tests.crash.stored import Entry, transcripts
from tests.polling import until

WAIT = 60.0
RESTARTED = "I was restarted while coder was working."


@dataclass(slots=True, kw_only=True)
class CodingHarness(CrashHarness):
    """A crash harness whose daemons have a coding agent. Buttons are pressed by the test."""

    def ask(self, text: str, chat: str = "ada") -> str:
        """Write a message, and return its id."""
        event = f"m{len(self.platform.events) + 1}"
        self.platform.write(Event(id=event, chat=chat, text=text))
        return event

    async def answer(self, event: str) -> str:
        """Wait until a message is completely answered, and return the answer."""
        await self.until(lambda: any(each.is_last for each in self._replies(event)))
        return "\n".join(each.text for each in self._replies(event))

    async def answer_to(self, text: str, chat: str = "ada") -> str:
        """Write a message, and return the answer."""
        return await self.answer(self.ask(text, chat))

    def _replies(self, event: str) -> list[Shown]:
        return [each for each in self.platform.shown if each.reply_to == event and not each.is_question]

    async def questions(self, count: int = 1) -> list[Shown]:
        """Wait until so many questions were asked, and return all of them, without repetitions."""
        await self.until(lambda: len(self._questions()) >= count)
        return list(self._questions().values())

    def _questions(self) -> dict[str, Shown]:
        return {each.key: each for each in self.platform.shown if each.is_question}

    async def done(self, *lines: str) -> None:
        """Wait until the coding agent has done exactly this."""
        async with asyncio.timeout(WAIT):
            await until(lambda: effects(self.spec) == list(lines), within=WAIT)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            await self.platform.until(holds)

    async def kill(self, pid: int) -> None:
        """Kill a daemon. None of its programs is left."""
        await CrashHarness.kill(self, pid)
        await until(lambda: not programs(self.spec.home), within=WAIT)

    def entries(self, kind: str) -> list[Entry]:
        """Return the entries of a type in all transcripts."""
        found = transcripts(self.spec).values()
        return [entry for entries in found for entry in entries if entry["type"] == kind]

    def check(self, undelivered: frozenset[str] = frozenset()) -> None:
        check_coding(self.spec, self.platform, Allowed(deaths=self.deaths, undelivered=undelivered))


@asynccontextmanager
async def open_coding_harness(
    home: Path,
    *options: str,
    **more: Any,  # noqa: ANN401 - as for `coder`
) -> AsyncIterator[CodingHarness]:
    """Open a harness. `options` are those of the scripted agent, and `more` its settings or fields of `DaemonSpec`."""
    fields = {each.name for each in dataclass_fields(DaemonSpec)}
    settings = await asyncio.to_thread(coder, home, *options, **{k: v for k, v in more.items() if k not in fields})
    spec = replace(DaemonSpec(home=home, coder=settings), **{k: v for k, v in more.items() if k in fields})
    platform = FakePlatform(presses_buttons=False)
    async with daemons(imports=("gateway.acp.turn",)) as forked, platform.serving(spec.socket):
        try:
            yield CodingHarness(spec=spec, platform=platform, daemons=forked)
        except BaseException as failure:
            failure.add_note(f"log: {spec.log}\nunsettled: {platform.unsettled()}\n{platform.shown}")
            raise


def coder(home: Path, *options: str, **settings: Any) -> dict[str, Any]:  # noqa: ANN401 - values of the settings
    """Make a repository in `home`, and return settings for the scripted coding agent that works there."""
    if not (home / "repos/app").exists():
        make_repo(home / "repos/app")
    command = [sys.executable, "-I", "-S", str(SCRIPTED_AGENT), "continues", f"mark={mark(home)}", *options]
    return {"command": command, "sandbox": {"readable": [str(SCRIPTED_AGENT)]}, **settings}


def mark(home: Path) -> str:
    """Return a word in the command lines of all programs of a test."""
    return f"{home.parent.name}-{home.name}"


def programs(home: Path) -> list[str]:
    """Return the processes of coding agents that a test has started and that are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            # A kill in the middle of its start may leave a child of bubblewrap that runs nothing (ADR 45).
            if f"mark={mark(home)}".encode() in words and (process / "exe").resolve().name != "bwrap":
                found.append(process.name)
        except OSError:
            continue
    return found


def effects(spec: DaemonSpec) -> list[str]:
    """Return what the agent has done, in the repository and in all worktrees."""
    logs = [spec.repo / "effects.log", *(spec.data_dir / "worktrees").glob("*/*/effects.log")]
    return [line for log in logs if log.exists() for line in log.read_text().splitlines()]


def check_coding(spec: DaemonSpec, platform: FakePlatform, allowed: Allowed) -> None:
    """Raise `AssertionError` with all broken promises. Call it after the last daemon was stopped, not killed."""
    problems = [
        *spool_problems(spec, platform, allowed),
        *repeat_problems(platform, allowed),
        *file_problems(spec, allowed),
        *_answer_problems(spec, platform),
        *_call_problems(spec, allowed),
        *(f"the program {pid} is left" for pid in programs(spec.home)),
    ]
    assert not problems, "\n".join(problems)


def _answer_problems(spec: DaemonSpec, platform: FakePlatform) -> Iterator[str]:
    """Each message has one turn with one end, and the chat says what the transcript says."""
    shown: defaultdict[str | None, dict[str, str]] = defaultdict(dict)
    for each in platform.shown:
        if not each.is_question:
            shown[each.reply_to][each.key.removesuffix(".draft")] = each.text
    for event in platform.events:
        if len({key.split(".")[0] for key in shown[event.id]}) != 1:
            yield f"{event.id} was answered by {list(shown[event.id])}"
    asked: Counter[str] = Counter()
    for entries in transcripts(spec).values():
        turns: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            turns[entry.get("turn", "")].append(entry)
        for entry in (each for each in entries if each["type"] == "user"):
            event = entry["event_id"]
            asked[event] += 1
            yield from _turn_problems(event, turns[entry["turn"]], "\n".join(shown[event].values()))
    wanted = Counter(event.id for event in platform.events if not event.is_command)
    if asked != wanted:
        yield f"the transcripts have {asked}"


def _turn_problems(event: str, turn: Sequence[Entry], shown: str) -> Iterator[str]:
    ends = [entry["outcome"] for entry in turn if entry["type"] == "turn_end"]
    if len(ends) != 1:
        yield f"{event}: its turn ended {len(ends)} times"
    calls = Counter(entry["tool_use_id"] for entry in turn if entry["type"] == "tool_use")
    results = Counter(entry["tool_use_id"] for entry in turn if entry["type"] == "tool_result")
    if calls != results or any(times > 1 for times in calls.values()):
        yield f"{event}: {calls} were called, and {results} have results"
    texts = [entry["content"] for entry in turn if entry["type"] == "assistant"]
    yield from (f"{event}: {text!r} was not shown in {shown!r}" for text in texts if text.strip() not in shown)
    notices = [entry["content"] for entry in turn if entry["type"] == "system"]
    if notices and notices[-1] not in shown:
        yield f"{event}: no one was told: {notices[-1]}"


def _call_problems(spec: DaemonSpec, allowed: Allowed) -> Iterator[str]:
    """No call was done more often than it was approved, and each approval was requested and decided once."""
    done = Counter(line.removeprefix("edit ") for line in effects(spec) if line.startswith("edit "))
    approved: Counter[str] = Counter()
    for entries in transcripts(spec).values():
        calls = {entry["tool_use_id"]: entry for entry in entries if entry["type"] in {"tool_use", "tool_update"}}
        approvals = [entry for entry in entries if entry["type"] == "approval"]
        asked = Counter(entry["tool_use_id"] for entry in approvals if "decision" not in entry)
        decided = Counter(entry["tool_use_id"] for entry in approvals if "decision" in entry)
        yield from (f"{call} was asked {times} times" for call, times in asked.items() if times > 1)
        yield from (f"{call} was decided {times} times" for call, times in decided.items() if times > 1)
        for entry in approvals:
            if entry.get("decision") == "approved":
                approved[calls[entry["tool_use_id"]]["input"]["argument"]] += 1
    for call, times in done.items():
        if times > approved[call]:
            yield f"{call!r} was approved {approved[call]} times and done {times} times"
    for line, times in Counter(line for line in effects(spec) if line.startswith("append ")).items():
        if times > 1 + allowed.deaths:
            yield f"{line!r} was done {times} times"
