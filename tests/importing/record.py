"""Runs nanobot, hermes-agent and OpenClaw for some turns, and keeps what they have written as test data.

    python -m tests.importing.record [NAME ...]

`README.md` next to this file says what that needs and what it leaves in `tests/fixtures/importing/`.
"""

import argparse
import asyncio
import json
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from bench.bot_api import TOKEN
from bench.peers import hermes, nanobot, openclaw
from bench.peers.peer import Peer, Servers
from bench.peers.process_tree import started
from bench.peers.proxy import certified, proxied
from tests.acp.model_server import Call, ModelServer, Reply, Request, Say
from tests.channels.telegram.bot_api import ADA, BOB, FakeBotApi, Json
from tests.importing.fixtures import FIXTURES, keep

PEERS = {module.PEER.name: module.PEER for module in (nanobot, hermes, openclaw)}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "gatehouse-bench"
START_LIMIT = 240.0
ANSWER_LIMIT = 240.0

GROUP = {"id": -1001234567890, "type": "supergroup", "title": "Travellers", "is_forum": True}
BOT = {
    "id": 123456,
    "is_bot": True,
    "first_name": "Bench",
    "username": "bench_bot",
    "can_join_groups": True,
    "can_read_all_group_messages": True,
    "supports_inline_queries": False,
}

WRITE = {"write_file", "write"}
READ = {"read_file", "read"}
TALE = "The train crossed the river at dawn, and Ada counted the bridges until the last one. She drank green tea."
LIST = "packing list: passport, umbrella\n"


def write_file(request: Request, path: str, content: str) -> Reply:
    name = next(name for name in request.tools if name in WRITE)
    path_name = next(each for each in request.tools[name]["properties"] if "path" in each)
    return Call(name=name, arguments={path_name: path, "content": content})


def read_file(request: Request, path: str) -> Reply:
    name = next(name for name in request.tools if name in READ)
    path_name = next(each for each in request.tools[name]["properties"] if "path" in each)
    return Call(name=name, arguments={path_name: path})


def remember(request: Request) -> Reply:
    """Use the tool for the memory, or write the memory file if there is none that changes it."""
    if "memory" in request.tools:
        return Call(name="memory", arguments={"action": "add", "target": "user", "content": "Ada likes green tea."})
    path = "MEMORY.md" if "write" in request.tools else "memory/MEMORY.md"
    return write_file(request, path, "# Memory\n\n## Preferences\n\n- Ada likes green tea.\n- Ada travels by train.\n")


STEPS: dict[str, Sequence[Callable[[Request], Reply]]] = {
    "My name is Ada": [lambda _: Say(text="Nice to meet you, Ada. Lisbon is lovely.")],
    "Write my packing list": [
        lambda request: write_file(request, "packing.txt", LIST),
        lambda request: read_file(request, "packing.txt"),
        lambda _: Say(text="I have written it: a passport and an umbrella."),
    ],
    "Is the umbrella on it": [lambda _: Say(text="Yes, **the umbrella** is on the list. ☂️")],
    "I like green tea": [remember, lambda _: Say(text="I will remember that.")],
    "Read the file that is missing": [
        lambda request: read_file(request, "missing.txt"),
        lambda _: Say(text="There is no such file."),
    ],
    "Tell me a long story": [lambda _: Say(text="\n\n".join(f"Chapter {number}. {TALE}" for number in range(1, 13)))],
    "Guten Tag": [lambda _: Say(text="Guten Tag, Bob! 你好。")],
    "Where do we meet": [lambda _: Say(text="At the station, at noon.")],
    "What time is it": [lambda _: Say(text="It is noon.")],
}
"""What the model does after a message with these words: a reply for each step of the agent."""


def script(request: Request) -> Reply:
    """Answer the newest question of a request. Gateways repeat earlier ones in their remarks, and ask for titles."""
    asked: dict[str, int] = {}
    for at, message in enumerate(request.body["messages"]):
        if message["role"] == "user":
            said = json.dumps(message["content"], ensure_ascii=False)
            for words in STEPS:
                if words in said:
                    asked.setdefault(words, at)
    if not asked or not request.tools:
        return Say(text="Travel plans")
    words, begin = max(asked.items(), key=lambda each: each[1])
    results: int = sum(message["role"] == "tool" for message in request.body["messages"][begin:])
    step = STEPS[words][min(results, len(STEPS[words]) - 1)]
    return step(request)


class Telegram(FakeBotApi):
    """The Bot API for any client: each HTTP method, more methods of the API, and chats with their types."""

    async def _answer(self, method: str, fields: dict[str, str], token: str) -> tuple[int, Json]:
        del token
        if method == "getUpdates":
            return await self._get_updates(fields)
        result: object = True
        if method == "getMe":
            result = BOT
        elif method in {"getMyCommands", "getChatAdministrators", "getForumTopicIconStickers"}:
            result = []
        elif method == "getWebhookInfo":
            result = {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
        elif method == "getChat":
            result = chat_of(fields["chat_id"]) | {"accent_color_id": 0, "max_reaction_count": 11}
        elif method == "editMessageText" or method in {"sendMessage", "sendRichMessage", "sendPhoto", "sendDocument"}:
            result = self._sent(fields)
        return 200, {"ok": True, "result": result}

    def _sent(self, fields: dict[str, str]) -> Json:
        return super()._sent({"text": "", **fields}) | {"chat": chat_of(fields["chat_id"]), "from": BOT}

    async def ask(
        self, text: str, answer: str, *, sender: Json = ADA, chat: Json | None = None, **more: object
    ) -> None:
        """Send a message, and wait until the bot has written a message that contains `answer`."""
        before = len(self.calls)
        await self.say(text, sender=sender, chat=chat, **more)

        def has_answered() -> bool:
            return any(answer in json.dumps(call.fields, ensure_ascii=False) for call in self.calls[before:])

        try:
            async with asyncio.timeout(ANSWER_LIMIT), self._changed:
                await self._changed.wait_for(has_answered)
        except TimeoutError:
            methods = [call.method for call in self.calls[before:]]
            raise TimeoutError(f"no answer to {text!r}, but {methods[-20:]}") from None


def chat_of(chat: str) -> Json:
    return GROUP if int(chat) < 0 else {"id": int(chat), "type": "private", "first_name": "Ada"}


@asynccontextmanager
async def telegram(tls: ssl.SSLContext) -> AsyncIterator[tuple[Telegram, int]]:
    """Run the Bot API on loopback. Yields it with a second port, which has TLS."""
    api = Telegram()
    app = web.Application()
    app.router.add_route("*", "/bot{token}/{method}", api.serve)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield api, runner.addresses[1][1]
    finally:
        await runner.cleanup()


async def talk(api: Telegram) -> None:
    """Have two people and a group talk to the bot."""
    await api.ask("My name is Ada and I live in Lisbon.", "Nice to meet you")
    await api.ask("Write my packing list to packing.txt, please: passport, umbrella", "I have written it")
    await api.ask("Is the umbrella on it?", "on the list")
    await api.ask("Guten Tag! Ich bin Bob. 🎒", "Guten Tag, Bob", sender=BOB)
    mention = [{"type": "mention", "offset": 0, "length": len("@bench_bot")}]
    await api.ask("@bench_bot Where do we meet?", "At the station", chat=GROUP, entities=mention)
    topic: Json = {"message_thread_id": 7, "is_topic_message": True}
    await api.ask("@bench_bot Where do we meet?", "At the station", chat=GROUP, entities=mention, **topic)
    command = [{"type": "bot_command", "offset": 0, "length": len("/new")}]
    before = len(api.calls_of("sendMessage"))
    await api.say("/new", entities=command)
    await api.called("sendMessage", times=before + 1)
    await api.ask("I like green tea. Please remember that.", "I will remember")
    await api.ask("Read the file that is missing, please.", "There is no such file")
    await api.ask("Tell me a long story.", "Chapter 12")


async def record(peer: Peer, installed: Path, folder: Path) -> Path:
    """Run a gateway in an empty home, and return that home."""
    home = folder / "home"
    home.mkdir()
    certificate, tls = certified(folder)
    async with telegram(tls) as (api, port), proxied(port) as proxy, ModelServer(script) as model:
        servers = Servers(bot_api=api.url, model=f"{model.url}/v1", proxy=proxy, certificate=certificate)
        launch = peer.configure(installed, home, servers)
        SETTINGS[peer.name](home)
        async with started(launch, home):
            async with asyncio.timeout(START_LIMIT):
                while not (api.polls or api.calls_of("getUpdates")):  # noqa: ASYNC110 - a process has no event
                    await asyncio.sleep(0.2)
            await talk(api)
            await asyncio.sleep(5)  # Some write a title, or their index, after the answer.
        command = COMMANDS[peer.name]
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **launch.env}
        binary = str(Path(launch.command[0]))
        process = await asyncio.create_subprocess_exec(
            binary, *command, cwd=home, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), ANSWER_LIMIT)
        assert "noon" in output.decode(), output.decode()
    return home


def _nanobot_settings(home: Path) -> None:
    path = home / ".nanobot/config.json"
    settings = json.loads(path.read_text())
    settings["channels"]["telegram"] |= {"allowFrom": ["42", "77"], "groupPolicy": "mention"}
    path.write_text(json.dumps(settings, indent=2))


def _hermes_settings(home: Path) -> None:
    path = home / ".hermes/config.yaml"
    settings = json.loads(path.read_text())
    # Otherwise it asks whether `/new` is meant.
    path.write_text(json.dumps(settings | {"approvals": {"destructive_slash_confirm": False}}))
    path = home / ".hermes/.env"
    path.write_text(f"TELEGRAM_BOT_TOKEN={TOKEN}\nTELEGRAM_ALLOWED_USERS=42,77\nOPENROUTER_API_KEY=sk-or-made-up\n")


def _openclaw_settings(home: Path) -> None:
    path = home / ".openclaw/openclaw.json"
    settings = json.loads(path.read_text())
    group = {"requireMention": True, "allowFrom": ["42"]}
    settings["channels"]["telegram"] |= {
        "dmPolicy": "allowlist",
        "allowFrom": ["42", "77"],
        "groups": {str(GROUP["id"]): group},
    }
    settings["tools"] = {"toolSearch": False}  # Otherwise the model has to search for the tools that it may call.
    path.write_text(json.dumps(settings, indent=2))


SETTINGS = {"nanobot": _nanobot_settings, "hermes-agent": _hermes_settings, "openclaw": _openclaw_settings}
COMMANDS = {
    "nanobot": ["agent", "-m", "What time is it?"],
    "hermes-agent": ["chat", "-q", "What time is it?"],
    "openclaw": ["agent", "--local", "--agent", "main", "--message", "What time is it?"],
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.importing.record", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; all if none is given")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the installations (%(default)s)")
    parser.add_argument("--keep", type=Path, help="also keep everything that they wrote in this folder")
    options = parser.parse_args()
    for name in options.names or PEERS:
        peer = PEERS[name]
        installed = options.cache.absolute() / f"{peer.name}-{peer.version}"
        if not installed.exists():
            options.cache.mkdir(parents=True, exist_ok=True)
            peer.install(installed)
        with TemporaryDirectory(prefix="gatehouse-record-") as folder:
            home = Path(folder) / "home"
            try:
                asyncio.run(record(peer, installed, Path(folder)))
                keep(name, home, FIXTURES / f"{peer.name}-{peer.version}")
            finally:
                if options.keep and home.exists():
                    shutil.copytree(home, options.keep / name, dirs_exist_ok=True, symlinks=True)


if __name__ == "__main__":
    main()
