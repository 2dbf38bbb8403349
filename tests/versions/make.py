"""Makes the fixture of a version: plays the story with its real program, kills that, and packs its data directory.

A version that can move data into a database does so as well, with the data of that gateway.

    python -m tests.versions.make VERSION [PROGRAM]

PROGRAM is the `gatehouse` of the version, by default the one beside this Python. `make fixture` does it for this one.
"""

import asyncio
import io
import lzma
import re
import socket
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import AsyncExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.channels.telegram.bot_api import TEST_TIMEOUT, FakeBotApi, Json, bot_api, refusal
from tests.versions import story
from tests.versions.fixture import DATABASE, FIXTURES, PACKED, Facts, write_facts

_LEFT_OUT = ("control.sock", "gatehouse.lock", "http.token", "spool.reserve", "chat.log", "chat_history", "files.lock")
_NOT_NEEDED = re.compile(rf"({'|'.join(map(re.escape, _LEFT_OUT))}|.*\.log.*)")


class Player:
    """A running gateway of the version, and the people who talk to it."""

    def __init__(self, program: Path, home: Path, api: FakeBotApi) -> None:
        self._program, self._home, self._api = program, home, api
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [str(self._program), "--config", str(self._home / "gatehouse.toml"), "run"]
        with (self._home / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._home, env=self._environment()
            )
        ready = asyncio.ensure_future(self._api.called("getUpdates"))
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise SystemExit(f"The gateway has ended:\n{(self._home / 'log').read_text()}")
        ended.cancel()

    async def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def run(self, *words: str) -> str:
        command = [str(self._program), "--config", str(self._home / "gatehouse.toml"), *words]
        running = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._home,
            env=self._environment(),
        )
        output, _ = await running.communicate()
        if running.returncode:
            raise SystemExit(f"{' '.join(words)} failed:\n{output.decode()}")
        return output.decode()

    async def ask(
        self, text: str, wanted: str, *, sender: Json = story.ADA, chat: Json | None = None, **fields: object
    ) -> str:
        """Say something, and return the text of the first message after it with the `wanted` words."""
        before = len(self._api.calls_of("sendMessage"))
        await self._api.say(text, sender=sender, chat=chat, **fields)
        for number in range(before + 1, before + 100):
            sent = (await self._api.called("sendMessage", times=number)).fields["text"]
            if wanted in sent:
                return sent
        raise SystemExit(f"There was no answer to {text!r}.")

    def _environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self._home), "LANG": "C.UTF-8"}


async def play(program: Path, home: Path) -> None:
    """Play the story. The data is in `data` in the home folder afterwards."""
    async with AsyncExitStack() as stack:
        stack.enter_context(closing(hanging := socket.create_server(("127.0.0.1", 0))))
        hanging.setblocking(False)  # noqa: FBT003 - it takes no keyword.
        api = await stack.enter_async_context(bot_api())
        model_url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        player = Player(program, home, api)
        config = home / "gatehouse.toml"
        config.touch(mode=0o600)
        help_text = await player.run("--help")
        limit = story.BACKLOG_LIMIT if _has(help_text, "token") else 20
        config.write_text(story.config(str(home / "data"), api.url, model_url, backlog_limit=limit))
        await player.start()
        stack.push_async_callback(player.kill)
        await _talk(player, api, help_text)
        # Ada's last answer is committed, and cannot be delivered.
        api.scripted["sendMessage"].extend([refusal(429, "Too Many Requests", retry_after=3600)] * 1_000)
        refused = len(api.calls_of("sendMessage"))
        await api.say(story.UNDELIVERED)
        await api.called("sendMessage", times=refused + 1)
        # Cy's turn has begun once the model is asked.
        await api.say(story.INTERRUPTED, sender=story.CY)
        async with asyncio.timeout(TEST_TIMEOUT):
            connection, _ = await asyncio.get_running_loop().sock_accept(hanging)
            stack.enter_context(closing(connection))
            await asyncio.get_running_loop().sock_recv(connection, 1)
        await player.kill()
        if _has(help_text, "migrate"):  # It copies what the killed gateway has left, too.
            await player.run("migrate", "--to", f"sqlite://{home / DATABASE}")


async def _talk(player: Player, api: FakeBotApi, help_text: str) -> None:
    await player.ask("my name is Ada Lovelace", "Ada")
    await player.ask(f"remember that {story.NOTE}", "oted")
    await player.ask("remind me every day at 9:00 to stretch", "Reminder")
    api.files["list"] = story.FILE_CONTENT
    document = {"file_id": "list", "file_unique_id": "U", "file_name": story.FILE, "mime_type": "text/plain"}
    await player.ask("", "offline", caption="Here is my list.", document={**document, "file_size": 18})
    for title in story.TITLES:
        await player.ask(f"/new {title}", title)
        if title == story.TITLES[-1]:
            await player.ask(story.FIRST, "red door")
        await player.ask(f"my name is Ada {title.split()[0]}", "Ada")
    mention = {"type": "mention", "offset": 0, "length": 9}
    await player.ask("@gate_bot hello", "Hello", chat=story.GROUP, entities=[mention])
    code = re.search(r"\b[A-Z0-9]{4}-?[A-Z0-9]{4}\b", await player.ask("Good day", "code", sender=story.BOB))
    assert code is not None
    await player.run("pair", "approve", code[0])
    await player.ask("my name is Bob", "Bob", sender=story.BOB)
    await player.ask("May I come in?", "code", sender=story.DORA)
    await player.run("chat", "--once", story.TERMINAL)
    if _has(help_text, "token"):
        await player.run("token", "create", story.API_TOKEN, "--scope", "read")
    if _has(help_text, "schedules"):
        await player.ask(story.SCHEDULE, "")


def _has(help_text: str, command: str) -> bool:
    return f"\n  {command} " in help_text


def pack(data: Path, target: Path) -> None:
    """Pack the data directory, without secrets, and without what belongs to this machine."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz", preset=9) as archive:
        for path in sorted(data.rglob("*")):
            name = path.relative_to(data).as_posix()
            if _NOT_NEEDED.fullmatch(name) or path.is_socket():
                continue
            info = archive.gettarinfo(path, name)
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if not path.is_file():
                archive.addfile(info)
                continue
            read = path.read_bytes()
            if str(data.parent).encode() in read:
                raise SystemExit(f"{name} names the folder of this machine.")
            archive.addfile(info, io.BytesIO(read))
    target.write_bytes(content.getvalue())


def main() -> None:
    version = sys.argv[1]
    program = Path(sys.argv[2] if sys.argv[2:] else Path(sys.executable).parent / "gatehouse")
    folder = FIXTURES / version
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="gatehouse-fixture-") as name:
        home = Path(name)
        asyncio.run(play(program, home))
        pack(home / "data", folder / PACKED)
        if (home / DATABASE).exists():
            (folder / f"{DATABASE}.xz").write_bytes(lzma.compress((home / DATABASE).read_bytes(), preset=9))
        with closing(sqlite3.connect(home / "data/spool.db")) as spool:
            (spool_format,) = spool.execute("PRAGMA user_version").fetchone()
        has_archive = (home / "data/sessions/archive").exists()
    write_facts(folder, Facts(made=datetime.now(UTC), spool_format=spool_format, has_archive=has_archive))
    print(f"{folder}: {(folder / PACKED).stat().st_size:,} bytes")  # noqa: T201 - a command.


if __name__ == "__main__":
    main()
