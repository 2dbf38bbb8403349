import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.adapters.registry import ChannelRegistry, find_channel
from gateway.adapters.supervisor import ChannelState
from gateway.contract import Inbound, Verdict
from gateway.errors import CannotStart
from gateway.testing import StubBrowser
from tests.polling import until

QUIET = {"web": {"enabled": False}, "terminal": {"enabled": False}}


def settings(folder: Path, **channels: dict[str, object]) -> Settings:
    return Settings.model_validate({"gateway": {"data_dir": folder}, "channels": {**QUIET, **channels}})


async def deliver(_inbound: Inbound) -> Verdict:
    return Verdict.ACCEPTED


def states(channels: ChannelRegistry) -> dict[str, str]:
    return {f"{health.name}:{health.account}": health.state for health in channels.health()}


async def until_up(channels: ChannelRegistry) -> None:
    await until(lambda: {health.state for health in channels.health()} == {ChannelState.UP})


async def test_each_account_is_a_separate_channel(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={"accounts": {"work": {}, "home": {}}}))
    assert set(channels.by_identity) == {("loopback", "work"), ("loopback", "home")}


async def test_a_reload_opens_closes_and_replaces_channels(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={"accounts": {"kept": {}, "gone": {}, "changed": {}}}))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        channels.start(tasks, deliver)
        await until_up(channels)
        before = dict(channels.by_identity)
        accounts = {"kept": {}, "changed": {"allow": ["7"]}, "fresh": {}}
        await channels.apply(channels.prepare(settings(tmp_path, loopback={"accounts": accounts})))
        await until_up(channels)
        after = dict(channels.by_identity)
        assert states(channels) == {"loopback:kept": "up", "loopback:changed": "up", "loopback:fresh": "up"}
        await channels.stop()
    assert after["loopback", "kept"] is before["loopback", "kept"]
    assert after["loopback", "changed"] is not before["loopback", "changed"]


async def test_a_channel_is_closed_before_its_successor_starts(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={}))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        channels.start(tasks, deliver)
        await until_up(channels)
        old = channels.by_identity["loopback", "default"]
        assert isinstance(old, LoopbackChannel)
        await channels.apply(channels.prepare(settings(tmp_path, loopback={"allow": ["7"]})))
        assert not old.is_reading
        await channels.stop()


async def test_a_failed_reload_changes_nothing(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={}))
    with pytest.raises(CannotStart, match="carrier_pigeon"):
        channels.prepare(settings(tmp_path, carrier_pigeon={}))
    assert set(channels.by_identity) == {("loopback", "default")}


MODULES = {
    "syntax": "def open(:",
    "missing": "import no_such_module_anywhere",
    "exits": "raise SystemExit(3)",
    "raises": "raise ValueError('boom')",
    "number": "open = 5",
    "empty": "",
    "good": "def open(context): ...",
}


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a third party's distribution with channels that are each broken in a different way."""
    package, metadata = tmp_path / "stranger_channels", tmp_path / "strangers_package-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").touch()
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(text)
    names = [*MODULES, "gone"]
    points = "\n".join(f"stranger-{name} = stranger_channels.{name}:open" for name in names)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[gatehouse.channels]\n{points}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for module in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[module]


def test_an_unknown_channel_is_refused_with_a_list_of_the_installed_ones() -> None:
    with pytest.raises(CannotStart, match=r"channels\.carrier_pigeon .* web, webhook\. .*enabled to false"):
        find_channel("carrier_pigeon")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("syntax", "SyntaxError"),
        ("exits", "SystemExit: 3"),
        ("raises", "ValueError: boom"),
        ("number", "`stranger_channels.number:open` is not callable"),
        ("empty", "AttributeError"),
        ("missing", "`no_such_module_anywhere`, which is not installed"),
        ("gone", "`stranger_channels.gone`, which is not installed"),
    ],
)
@pytest.mark.usefixtures("third_party")
def test_a_broken_channel_is_refused_with_its_name_and_its_package(name: str, fault: str) -> None:
    with pytest.raises(CannotStart) as refused:
        find_channel(f"stranger-{name}")
    sentence = str(refused.value)
    assert sentence.startswith(f"channels.stranger-{name} is enabled, but ")
    assert fault in sentence
    assert "`strangers-package`" in sentence
    assert f"set channels.stranger-{name}.enabled to false" in sentence


@pytest.mark.usefixtures("third_party")
def test_a_third_partys_channel_is_found_like_a_built_in_one() -> None:
    assert callable(find_channel("stranger-good"))
    assert callable(find_channel("web"))
