"""From nothing to a gateway that answers: told by options through the process, and asked by a guide."""

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from config import load
from gateway.cli.setup import main
from gateway.setup.models import local_models
from gateway.setup.plan import bots
from tests.agent.wire import OPENAI, serving
from tests.agent.wire.server import KEY
from tests.channels.telegram.bot_api import TOKEN, bot_api
from tests.running import gatehouse, running, write_config

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


def test_what_does_not_work_is_not_written(tmp_path: Path) -> None:
    refused = gatehouse(
        "setup", "--provider", "custom", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", home=tmp_path
    )
    assert refused.returncode == 1
    assert "Nothing was written" in refused.stderr
    assert not (tmp_path / ".gatehouse").exists()


def test_it_can_be_told_by_options_and_told_again(tmp_path: Path) -> None:
    assert gatehouse("setup", "--provider", "offline", "--owner", "telegram:7", home=tmp_path).returncode == 0
    again = gatehouse(
        "setup", "--provider", "ollama", "--model", "m", "--no-test", "--owner", "telegram:8", home=tmp_path
    )
    assert again.returncode == 0
    settings = load(tmp_path / ".gatehouse/gatehouse.toml", {"HOME": str(tmp_path)}).settings
    assert settings.gateway.owners == ("telegram:7", "telegram:8")
    assert settings.agents["main"].provider == "ollama"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "Nobody is there to be asked"),
        (("--provider", "openai"), 1, "openai needs a key"),
        (("--provider", "custom", "--model", "m"), 1, "--base-url"),
        (("--provider", "anthropic", "--key", "env:NOT_SET_ANYWHERE"), 1, "NOT_SET_ANYWHERE"),
        (("--token", "pigeon=x"), 1, "channels with a token are: discord, telegram"),
        (("--token", "telegram=x"), 1, "is not a bot's token"),
    ],
)
def test_what_is_missing_is_a_sentence(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    told = gatehouse("setup", *arguments, home=tmp_path)
    assert (told.returncode, said in told.stderr) == (code, True), told.stderr


def test_a_gateway_that_runs_follows_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        told = gatehouse("setup", "--provider", "offline", home=tmp_path)
        assert (told.returncode, "has read its configuration again" in told.stdout) == (0, True)
        daemon.wait_for("config_reloaded")


def test_channels_say_for_themselves_what_they_need() -> None:
    assert set(bots()) == {"discord", "telegram"}


async def test_where_no_model_is_served_none_is_found() -> None:
    assert await local_models("http://127.0.0.1:9") == []
