"""From nothing to a gateway that answers: told by options through the process, and asked by a guide."""

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
from gateway.cli.setup import main
from gateway.service_units import Scope, place
from gateway.setup.models import local_models, ollama_at
from gateway.setup.plan import bots, token_plan
from gateway.setup.system import drop_in, for_service
from tests.agent.wire import OPENAI, serving
from tests.agent.wire.server import KEY
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi, bot_api
from tests.running import DEFAULTS, Running, gatehouse, running, write_config

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


class Script:
    """A person who knows all the answers beforehand."""

    def __init__(self, *answers: str) -> None:
        self._answers: Iterator[str] = iter(answers)
        self.heard: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)

    def ask(self, question: str, default: str = "") -> str:
        self.heard.append(question)
        return next(self._answers) or default

    def ask_secret(self, question: str) -> str:
        return self.ask(question)


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_person_is_led_to_a_model_and_a_bot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with bot_api() as telegram, serving(OPENAI, OPENAI.answer("yes")) as model:
        path = write_config(tmp_path, f'[gateway]\ndata_dir = "{tmp_path}/data"\n[channels.telegram]\n')
        path.write_text(path.read_text() + f'api_base = "{telegram.url}"\nenabled = false\n')
        url = str(model.table()["base_url"])
        person = Script("nonsense", "custom", url, "m", KEY, "", TOKEN, "none")
        assert await asyncio.to_thread(main, [], config=path, guide=person) == 0, capsys.readouterr().err
    settings = load(path).settings
    assert (settings.agents["main"].provider, settings.agents["main"].model) == ("custom", "m")
    assert settings.channels["telegram"].token is not None
    assert settings.channels["telegram"].enabled
    assert private(path)
    assert private(tmp_path / "custom.key")
    assert private(tmp_path / "telegram.token")
    said = "".join(person.heard) + "".join(capsys.readouterr())
    assert "BotFather" in said
    assert TOKEN not in said + path.read_text()
    assert KEY not in said + path.read_text()


def test_what_does_not_work_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gatehouse.toml"
    silent = ("--provider", "custom", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert main(silent, config=path) == 1
    assert "Nothing was written" in capsys.readouterr().err
    assert not path.exists()


def test_it_can_be_told_by_options_and_told_again(tmp_path: Path) -> None:
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
        (("--provider", "anthropic", "--key", "env:NOT_SET_ANYWHERE"), 1, "NOT_SET_ANYWHERE"),
        (("--token", "pigeon=x"), 1, "channels with a token are: discord, telegram"),
        (("--token", "telegram=x"), 1, "is not a bot's token"),
    ],
)
def test_what_is_missing_is_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, config=tmp_path / "gatehouse.toml") == code
    assert said in capsys.readouterr().err


def test_without_a_terminal_the_options_are_named(tmp_path: Path) -> None:
    told = gatehouse("setup", home=tmp_path)
    assert (told.returncode, "Nobody is there to be asked" in told.stderr) == (2, True)


def test_a_gateway_that_runs_follows_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        told = gatehouse("setup", "--provider", "offline", home=tmp_path)
        assert (told.returncode, "has read its configuration again" in told.stdout) == (0, True)
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


async def test_an_ollama_of_this_machine_is_found_and_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path, f'[gateway]\ndata_dir = "{tmp_path}/data"\n')
    async with ollama("qwen3:8b", "llama3.3") as place:
        monkeypatch.setenv("OLLAMA_HOST", place)
        person = Script("", "", "", "", "")
        assert await asyncio.to_thread(main, [], config=path, guide=person) == 0, capsys.readouterr().err
        assert "An Ollama runs on this machine, with qwen3:8b, llama3.3." in person.heard
        settings = load(path).settings
        assert (settings.agents["main"].provider, settings.agents["main"].model) == ("ollama", "qwen3:8b")
        assert settings.providers["ollama"].base_url == f"http://{place}/v1"
        told = await asyncio.to_thread(main, ["--provider", "ollama", "--model", "gone"], config=path)
        assert (told, load(path).settings) == (1, settings)


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),  # noqa: S104 - nothing listens there.
        ("0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("gpu.local", "http://gpu.local:11434"),
        (":8000", "http://127.0.0.1:8000"),
        ("[::]:8000", "http://[::1]:8000"),
        ("https://ollama.example", "https://ollama.example"),
        ("http://gpu.local:80/", "http://gpu.local:80"),
        ("gpu.local:none", "http://127.0.0.1:11434"),
    ],
)
def test_ollama_is_sought_where_its_own_variable_says(told: str, place: str) -> None:
    assert ollama_at({"OLLAMA_HOST": told}) == place


def test_another_provider_is_asked_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Neither its model, nor its endpoint, and least of all its key."""
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


def test_what_is_not_asked_for_again_stays(tmp_path: Path) -> None:
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
    assert main(["--no-test"], config=path, guide=person) == 0
    assert load(path, {"BOT": "t"}).settings == settings
    assert set_up(path, "--provider", "openai", "--base-url", "", "--key", "canary-first") == 0
    assert load(path, {"BOT": "t"}).settings.providers["openai"].base_url is None


def set_up(path: Path, *arguments: str) -> int:
    return main(["--no-test", *arguments], config=path)


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


async def test_the_owner_is_who_writes_to_the_bot_and_knows_its_code(tmp_path: Path) -> None:
    async with bot_api() as telegram:
        table = f'[channels.telegram]\napi_base = "{telegram.url}"\nenabled = false\n'
        path = write_config(tmp_path, DEFAULTS + table)
        with Running(tmp_path) as daemon:
            await asyncio.to_thread(daemon.ready)
            person = Newcomer(telegram, asyncio.get_running_loop(), "", "", TOKEN, "")
            assert await asyncio.to_thread(main, [], config=path, guide=person) == 0
            assert person.heard[-1] == "You are its owner. Write again."
            await telegram.say("/whoami")
            said = (await telegram.called("sendMessage", times=3)).fields["text"]
            assert "owner" in said


def test_the_machines_service_gets_its_secrets_by_systemd(tmp_path: Path) -> None:
    where = place(Scope.SYSTEM, tmp_path, tmp_path)
    typed = token_plan("telegram", Secret("canary-token"), None)
    plan = for_service(typed)
    assert plan.values["channels.telegram.token"] == "credential:telegram.token"
    assert plan.values["channels.telegram.enabled"] is True
    where.credentials.parent.mkdir(parents=True)
    where.credentials.write_text("[Service]\nLoadCredential=web:/root/web.token\n")
    loads = drop_in(where, plan.secrets)
    assert loads.splitlines()[-2:] == [
        f"LoadCredential=telegram.token:{tmp_path}/etc/gatehouse/telegram.token",
        "LoadCredential=web:/root/web.token",
    ]


def test_channels_say_for_themselves_what_they_need() -> None:
    assert set(bots()) == {"discord", "telegram"}


async def test_where_no_model_is_served_none_is_found() -> None:
    assert await local_models("http://127.0.0.1:9") == []
