"""`gatehouse setup` with options and with scripted answers."""

import asyncio
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from config import Secret, load
from gateway.cli import main
from gateway.cli.setup import main as setup
from gateway.cli.setup.choices import bot_channels
from tests.agent.wire import OPENAI, serving
from tests.agent.wire.server import KEY
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi, bot_api
from tests.daemon_process import DEFAULTS, DaemonProcess, gatehouse, running, write_config


class Script:
    """A prompter with prepared answers."""

    def __init__(self, *answers: str) -> None:
        self._answers: Iterator[str] = iter(answers)
        self.heard: list[str] = []
        self.suggested: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)

    def ask(self, question: str, default: str = "") -> str:
        self.heard.append(question)
        self.suggested.append(default)
        try:
            return next(self._answers) or default
        except StopIteration:
            raise EOFError from None

    def ask_secret(self, question: str) -> str:
        return self.ask(question)


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_interactive_setup_of_a_model_and_a_bot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with bot_api() as telegram, serving(OPENAI, OPENAI.answer("yes")) as model:
        path = write_config(tmp_path, f'[gateway]\ndata_dir = "{tmp_path}/data"\n[channels.telegram]\n')
        path.write_text(path.read_text() + f'api_base = "{telegram.url}"\nenabled = false\n')
        url = str(model.table()["base_url"])
        person = Script("none", "nonsense", "custom", url, "m", KEY, TOKEN, "")
        assert await asyncio.to_thread(setup, [], config=path, prompter=person) == 0, capsys.readouterr().err
    settings = load(path).settings
    assert (settings.agents["main"].provider, settings.agents["main"].model) == ("custom", "m")
    assert settings.channels["telegram"].token is not None
    assert settings.channels["telegram"].enabled
    assert private(path)
    assert private(tmp_path / "custom.key")
    assert private(tmp_path / "telegram.token")
    said = "".join(person.heard) + "".join(capsys.readouterr())
    assert person.heard[0].startswith("Setup asks for a service, a model and your bots")
    assert said.index("BotFather") < said.index("Developer Portal")
    assert TOKEN not in said + path.read_text()
    assert KEY not in said + path.read_text()


async def test_each_wrong_answer_is_asked_for_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with bot_api() as telegram, serving(OPENAI, OPENAI.answer("yes")) as model:
        table = f'[channels.telegram]\napi_base = "{telegram.url}"\nenabled = false\n'
        path = write_config(tmp_path, f'[gateway]\ndata_dir = "{tmp_path}/data"\n{table}')
        url = str(model.table()["base_url"])
        person = Script(
            "sometimes",
            "none",
            "nonsense",
            "custom",
            *("ftp://x", "127.0.0.1:9/v1", ""),  # The third is the suggestion with http:// in front.
            *("", "m"),
            *("env:NOT_SET_ANYWHERE", KEY),
            *("", url, "", KEY),  # The model did not answer, so all of it is asked again.
            *("hello", "env:NOT_SET_ANYWHERE", TOKEN),
            "",
        )
        assert await asyncio.to_thread(setup, [], config=path, prompter=person) == 0, capsys.readouterr().err
    settings = load(path).settings
    assert (settings.agents["main"].model, settings.providers["custom"].base_url) == ("m", url)
    assert settings.channels["telegram"].token == Secret(TOKEN)
    heard = "\n".join(person.heard)
    for said, times in {
        "Please choose one of: none, user, system.": 1,
        "Please choose one of: openai": 1,
        "The address must be a URL that starts with http:// or https://.": 2,
        "This needs an answer.": 1,
        "`env:NOT_SET_ANYWHERE` cannot be resolved: NOT_SET_ANYWHERE is not set.": 2,
        "Try again, or choose another provider.": 1,
        "is not a bot token": 1,
    }.items():
        assert heard.count(said) == times, (said, heard)
    assert "http://127.0.0.1:9/v1" in person.suggested


async def test_leaving_in_the_middle_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path)
    before = path.read_text()
    assert await asyncio.to_thread(setup, [], config=path, prompter=Script("none", "offline")) == 1
    assert capsys.readouterr().err.endswith("gatehouse: Nothing was changed.\n")
    assert path.read_text() == before


def test_settings_that_fail_their_test_are_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gatehouse.toml"
    silent = ("--provider", "custom", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert run_setup(path, *silent) == 1
    assert "Nothing was written" in capsys.readouterr().err
    assert not path.exists()


def test_setup_by_options_can_be_repeated(tmp_path: Path) -> None:
    assert gatehouse("setup", "--provider", "offline", "--owner", "telegram:7", home=tmp_path).returncode == 0
    path = tmp_path / ".gatehouse/gatehouse.toml"
    assert set_up(path, "--provider", "ollama", "--model", "m", "--owner", "telegram:8") == 0
    settings = load(path, {"HOME": str(tmp_path)}).settings
    assert settings.gateway.owners == ("telegram:7", "telegram:8")
    assert settings.agents["main"].provider == "ollama"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--provider", "openai"), 1, "openai needs a key"),
        (("--provider", "custom", "--model", "m"), 1, "--base-url"),
        (
            ("--provider", "custom", "--model", "m", "--base-url", "127.0.0.1:8000"),
            1,
            "starts with http:// or https://",
        ),
        (("--owner", "me"), 1, "--owner takes CHANNEL:ID"),
        (("--provider", "anthropic", "--key", "env:NOT_SET_ANYWHERE"), 1, "NOT_SET_ANYWHERE"),
        (("--token", "pigeon=x"), 1, "Channels with a token: telegram, discord"),
        (("--token", "telegram=x"), 1, "is not a bot token"),
    ],
)
def test_missing_option_is_explained(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_setup(tmp_path / "gatehouse.toml", *arguments) == code
    assert said in capsys.readouterr().err


def test_the_next_steps_name_the_configuration_that_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my gateway.toml"
    token = f"telegram=123456:{'a' * 35}"
    assert set_up(path, "--provider", "offline", "--token", token) == 0
    said = capsys.readouterr().out
    assert f"`gatehouse run --config '{path}'`" in said
    assert f"`gatehouse pair approve CODE --owner --config '{path}'`" in said


def test_without_a_terminal_setup_points_to_the_options(tmp_path: Path) -> None:
    told = gatehouse("setup", home=tmp_path)
    assert (told.returncode, "setup can't prompt" in told.stderr) == (2, True)


def test_setup_reloads_a_running_gateway_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        gatehouse("config", "set", "http.max_body_bytes", "2000000", home=tmp_path)
        told = gatehouse("setup", "--owner", "telegram:1", home=tmp_path)
        assert told.returncode == 0
        assert "Applied: gateway.owners." in told.stdout
        assert "Not applied until you restart the gateway: http.max_body_bytes." in told.stdout
        daemon.wait_for("config_reloaded")


@asynccontextmanager
async def ollama(*models: str) -> AsyncIterator[str]:
    """Serve what Ollama does: its own list of models, and OpenAI's protocol."""

    async def tags(_request: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": name, "size": 1} for name in models]})

    async def complete(request: web.Request) -> web.Response:
        if (await request.json())["model"] not in models:
            return web.json_response({"error": {"message": "model not found"}}, status=404)
        return web.Response(body=b"".join(OPENAI.answer("Yes.")), content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/api/tags", tags)
    app.router.add_post("/v1/chat/completions", complete)
    async with TestServer(app) as server:
        yield f"127.0.0.1:{server.port}"


async def test_local_ollama_is_found_and_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path, f'[gateway]\ndata_dir = "{tmp_path}/data"\n')
    async with ollama("qwen3:8b", "llama3.3") as place:
        monkeypatch.setenv("OLLAMA_HOST", place)
        person = Script("", "", "", "", "")
        assert await asyncio.to_thread(setup, [], config=path, prompter=person) == 0, capsys.readouterr().err
        assert "Ollama is running on this machine with qwen3:8b, llama3.3." in person.heard
        settings = load(path).settings
        assert (settings.agents["main"].provider, settings.agents["main"].model) == ("ollama", "qwen3:8b")
        assert settings.providers["ollama"].base_url == f"http://{place}/v1"
        told = await asyncio.to_thread(run_setup, path, "--provider", "ollama", "--model", "gone")
        assert (told, load(path).settings) == (1, settings)


def test_new_provider_gets_no_model_url_or_key_of_the_previous_one(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    first = ("--provider", "custom", "--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--key", "canary-first")
    assert set_up(path, *first) == 0
    assert set_up(path, "--provider", "offline") == 0
    assert load(path).settings.agents["main"].model is None
    assert set_up(path, "--provider", "custom", "--base-url", "http://127.0.0.1:2/v1", "--model", "other") == 0
    provider = load(path).settings.providers["custom"]
    assert (provider.base_url, provider.api_key) == ("http://127.0.0.1:2/v1", None)
    assert set_up(path, "--provider", "openai", "--key", "canary-second", "--base-url", "http://127.0.0.1:3/v1") == 0
    assert set_up(path, "--provider", "offline") == 0
    assert set_up(path, "--provider", "openai", "--key", "canary-third") == 0
    assert load(path).settings.providers["openai"].base_url is None


def test_settings_that_are_not_chosen_again_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_text('[session]\nidle_minutes = 7\n[channels.telegram]\nenabled = true\ntoken = "env:BOT"\n')
    path.chmod(0o600)
    first = ("--provider", "openai", "--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--key", "canary-first")
    assert set_up(path, *first) == 0
    assert set_up(path, "--provider", "openai", "--model", "larger") == 0
    assert set_up(path, "--owner", "telegram:7") == 0
    settings = load(path, {"BOT": "t"}).settings
    provider, agent = settings.providers["openai"], settings.agents["main"]
    assert (provider.base_url, agent.model) == ("http://127.0.0.1:1/v1", "larger")
    assert provider.api_key is not None
    assert provider.api_key.reveal() == "canary-first"
    assert settings.session.idle_minutes == 7
    assert settings.channels["telegram"].token is not None
    person = Script("", "", "", "", "", "")
    assert setup(["--no-test"], config=path, prompter=person) == 0
    assert load(path, {"BOT": "t"}).settings == settings
    assert set_up(path, "--provider", "openai", "--base-url", "", "--key", "canary-first") == 0
    assert load(path, {"BOT": "t"}).settings.providers["openai"].base_url is None


def run_setup(path: Path, *arguments: str) -> int:
    return main(["--config", str(path), "setup", *arguments])


def set_up(path: Path, *arguments: str) -> int:
    return run_setup(path, "--no-test", *arguments)


class Newcomer(Script):
    """A person who has started a bot, writes to it when told to, and types the code that it answers with."""

    def __init__(self, telegram: FakeBotApi, loop: asyncio.AbstractEventLoop, *answers: str) -> None:
        super().__init__(*answers)
        self._telegram = telegram
        self._loop = loop

    def ask(self, question: str, default: str = "") -> str:
        if "code" not in question:
            return super().ask(question, default)
        return asyncio.run_coroutine_threadsafe(self._code(), self._loop).result()

    async def _code(self) -> str:
        await self._telegram.say("hello")
        answer = (await self._telegram.called("sendMessage")).fields["text"]
        found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", answer)
        assert found, answer
        return found[0]


async def test_person_with_the_pairing_code_becomes_the_owner(tmp_path: Path) -> None:
    async with bot_api() as telegram:
        table = f'[channels.telegram]\napi_base = "{telegram.url}"\nenabled = false\n'
        path = write_config(tmp_path, DEFAULTS + table)
        with DaemonProcess(tmp_path) as daemon:
            await asyncio.to_thread(daemon.ready)
            person = Newcomer(telegram, asyncio.get_running_loop(), "", "", TOKEN, "")
            assert await asyncio.to_thread(setup, [], config=path, prompter=person) == 0
            assert person.heard[-1] == "You are now the owner of this bot. Write to it again."
            await telegram.say("/whoami")
            said = (await telegram.called("sendMessage", times=3)).fields["text"]
            assert "owner" in said


def test_channels_that_need_a_token_are_found_and_the_easiest_comes_first() -> None:
    assert list(bot_channels()) == ["telegram", "discord"]
