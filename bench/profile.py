"""`python -m bench profile`: where the CPU time of one message goes, as a table by stage and as flame graphs.

py-spy samples the thread that holds the interpreter lock. That is close to CPU time: system calls, which release the
lock, are a few percent of it. Sampling every thread in state R would count those that only wait for a CPU as well, and
those that were just stopped for a sample. A sampled process is slower, so the samples only say how the time of a thread
is divided. The CPU time of each thread per message is measured before, without py-spy.
"""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.bots import Bot, bare, gatehouse, started
from bench.flame_graph import Stacks, draw
from bench.model_server import served as model_served
from bench.table import print_table

CHATS = (1, 50)
SECONDS = 6.0
"""How long each phase is measured without py-spy."""
SAMPLED_SECONDS = 10
SAMPLES_PER_SECOND = 200
FOLDER = Path(os.environ.get("BENCH_PROFILE_DIR", "."))
"""Where the flame graphs are written."""

POLL = "poll: getUpdates and parsing"
ACCEPT = "intake and accept"
TURN = "lane and turn"
PROMPT = "prompt"
MODEL = "model call"
RECORD = "recording: sessions"
DELIVERY = "delivery"
SEND = "Telegram send"
LOG = "log and metrics"
SPOOL = "spool: hand-over on the loop"
HTTP = "HTTP: bytes received"
LOOP = "event loop itself"
WRITER = "spool writer thread"
THREADS = "other threads"
REST = "everything else"
STAGES = (POLL, ACCEPT, TURN, PROMPT, MODEL, RECORD, DELIVERY, SEND, LOG, SPOOL, HTTP, LOOP, WRITER, THREADS, REST)

MODULES = {
    "channels/telegram/payloads.py": POLL,
    "channels/telegram/polling.py": POLL,
    "channels/telegram/updates.py": POLL,
    "channels/telegram/wire.py": POLL,
    "channels/telegram/channel.py": SEND,
    "channels/telegram/markup.py": SEND,
    "channels/telegram/sender.py": SEND,
    "gateway/access/": ACCEPT,
    "gateway/adapters/": ACCEPT,
    "gateway/agent/context_window.py": PROMPT,
    "gateway/agent/loop.py": TURN,
    "gateway/agent/providers/": MODEL,
    "gateway/agent/tokens.py": PROMPT,
    "gateway/inbound/": ACCEPT,
    "gateway/lanes.py": TURN,
    "gateway/metrics.py": LOG,
    "gateway/observability/": LOG,
    "gateway/outbound/": DELIVERY,
    "gateway/routing.py": ACCEPT,
    "gateway/sessions/": RECORD,
    "gateway/sessions/cache.py": PROMPT,
    "gateway/sessions/history.py": PROMPT,
    "gateway/turns/": TURN,
    "gateway/turns/context.py": PROMPT,
    "gateway/turns/recorder.py": RECORD,
    "gateway/turns/usage.py": PROMPT,
}
"""The stage of a module or package. The longest path counts. Callers decide for modules that are not listed."""

SHARED = {"gateway/spool/": SPOOL, "aiohttp/": HTTP, "asyncio/": LOOP, "selectors.py": LOOP}
"""Modules that many stages use. They count only if the event loop has called them for no stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The CPU time of one message. All times are in microseconds."""

    total: float
    bare_total: float
    stages: dict[str, float]
    stacks: Stacks


def show() -> None:
    profiles = {}
    with model_served() as model:
        for chats in CHATS:
            with TemporaryDirectory() as home:
                profiles[chats] = asyncio.run(_profile(model, Path(home), chats))
    header = ["stage"]
    for chats in CHATS:
        header += [f"{_chats(chats)}, µs per message", "share"]
    table = [header]
    for stage in STAGES:
        line = [stage]
        for profile in profiles.values():
            line += [f"{profile.stages[stage]:,.0f}", f"{profile.stages[stage] / profile.total:.1%}"]
        table.append(line)
    ours, theirs = ["CPU time of a message"], ["the same, bare bot with aiohttp"]
    for profile in profiles.values():
        ours += [f"{profile.total:,.0f}", "100 %"]
        theirs += [f"{profile.bare_total:,.0f}", f"{profile.bare_total / profile.total:.1%}"]
    print_table([*table, ours, theirs])
    for chats, profile in profiles.items():
        path = FOLDER / f"profile-{_chats(chats).replace(' ', '-')}.svg"
        title = f"CPU time of one message, {_chats(chats)}: {profile.total:,.0f} µs"
        path.write_text(draw(profile.stacks, title=title, unit="µs", group=stage_of, groups=STAGES))
        print(f"flame graph, {_chats(chats)}: {path}")


def _chats(number: int) -> str:
    return f"{number} chat" if number == 1 else f"{number} chats"


async def _profile(model: str, home: Path, chats: int) -> Profile:
    samples = home / "samples"
    async with (
        asyncio.timeout(300),
        started(lambda api: bare(api, f"{model}/plain", "aiohttp"), home) as bot,
        started(lambda api: gatehouse(api, f"{model}/plain", home), home) as ours,
    ):
        for each in (bot, ours):
            await _drive(each, chats, 1.0)  # Their first messages fill caches.
        bare_total = sum((await _drive(bot, chats, SECONDS / 2)).values())
        cpu = await _drive(ours, chats, SECONDS)
        spy = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(ours.process.pid)),
            *("--rate", str(SAMPLES_PER_SECOND), "--duration", str(SAMPLED_SECONDS)),
            *("--format", "raw", "--gil", "--threads", "--nolineno", "--output", str(samples)),
            stdout=DEVNULL,
            stderr=PIPE,
        )
        await _drive(ours, chats, SAMPLED_SECONDS)
        _, errors = await spy.communicate()
        if spy.returncode:
            reason = (errors.decode().strip() or "it gave no reason").splitlines()[-1]
            raise SystemExit(f"py-spy cannot sample the process, which needs the right to ptrace it: {reason}")
    stacks = _scaled(samples.read_text(), cpu)
    stages = dict.fromkeys(STAGES, 0.0)
    for stack, spent in stacks.items():
        stages[stage_of(stack)] += spent
    return Profile(total=sum(cpu.values()), bare_total=bare_total, stages=stages, stacks=stacks)


async def _drive(bot: Bot, chats: int, seconds: float) -> dict[int, float]:
    """Keep one message in flight in each chat. Returns the CPU microseconds of each thread for one message."""
    before, end, messages = bot.process.cpu_by_thread(), perf_counter() + seconds, 0

    async def talk(chat: int) -> None:
        nonlocal messages
        while perf_counter() < end:
            await bot.api.ask(chat)
            messages += 1

    async with asyncio.TaskGroup() as people:
        for chat in range(2, chats + 2):
            people.create_task(talk(chat), name=f"chat:{chat}")
    after = bot.process.cpu_by_thread()
    return {thread: (used - before.get(thread, 0.0)) * 1000 / messages for thread, used in after.items()}


def _scaled(samples: str, cpu: dict[int, float]) -> Stacks:
    """Divide the CPU time of each thread by its samples. The first frame of a stack is the name of its thread."""
    counts: dict[int, Stacks] = {thread: {} for thread in cpu}
    for line in samples.splitlines():
        frames, _, count = line.rpartition(" ")
        first, *stack = frames.split(";")  # "thread (1234): MainThread"
        number, _, name = first.removeprefix("thread (").partition("): ")
        if int(number) in counts:
            key = (name, *stack)
            counts[int(number)][key] = counts[int(number)].get(key, 0.0) + int(count)
    stacks: Stacks = {}
    for thread, of_thread in counts.items():
        each = cpu[thread] / (sum(of_thread.values()) or 1)
        for key, samples_of_stack in (of_thread or {("not sampled",): 1.0}).items():
            stacks[key] = stacks.get(key, 0.0) + samples_of_stack * each
    return stacks


def stage_of(stack: tuple[str, ...]) -> str:
    """Return the stage of the innermost frame that belongs to one."""
    thread, *frames = stack
    if thread != "MainThread":
        return WRITER if thread == "spool" else THREADS
    files = [frame.rpartition("(")[2].removesuffix(")") for frame in reversed(frames)]
    for table in (MODULES, SHARED):
        for file in files:
            if found := max((path for path in table if file.startswith(path)), key=len, default=None):
                return table[found]
    return REST
