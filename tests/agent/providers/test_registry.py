import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import ProviderKind, ProviderSettings
from gateway.agent.protocol import Closable
from gateway.agent.providers.offline import OfflineProvider
from gateway.agent.providers.registry import ProviderRegistry, open_provider
from gateway.errors import ProviderBusy
from tests.agent.streaming import step


def test_the_offline_provider_is_opened_by_its_kind() -> None:
    assert isinstance(open_provider(ProviderSettings(kind=ProviderKind.OFFLINE)), OfflineProvider)


@pytest.mark.parametrize("kind", [ProviderKind.OPENAI, ProviderKind.ANTHROPIC])
def test_providers_with_connections_can_be_closed(kind: ProviderKind) -> None:
    settings = ProviderSettings.model_validate({"kind": kind, "base_url": "http://127.0.0.1:9"})
    assert isinstance(open_provider(settings), Closable)


def test_a_model_is_found_by_its_full_name_or_at_the_agents_own_provider() -> None:
    local = ProviderSettings.model_validate({"kind": "openai", "base_url": "http://127.0.0.1:9"})
    provider = ProviderRegistry({"local": local, "other": local}).for_agent("local", "other/llama", ())
    assert provider.own.info.name == "local/other/llama"
    assert provider.about("other/llama").name == "local/other/llama", "its own model is never taken for another's"
    assert provider.about("other/qwen").name == "other/qwen"
    assert provider.about("maker/qwen").name == "local/maker/qwen"
    assert provider.about("qwen").name == "local/qwen"


def test_the_registry_is_imported_without_aiohttp() -> None:
    """Commands import it to check the agents in the configuration, and open no provider."""
    program = (
        "import sys, gateway.agent.providers.registry, gateway.agent.loop, gateway.agent.toolbox; "
        "sys.exit(bool({'aiohttp', 'markdown_it'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


async def test_a_provider_that_cannot_be_opened_does_not_stop_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "certificates").write_text("These are none.")
    broken = ssl.DefaultVerifyPaths("", "", "", str(tmp_path / "certificates"), "", "/nowhere")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: broken)
    local = ProviderSettings.model_validate({"kind": "openai", "base_url": "https://127.0.0.1:9"})
    registry = ProviderRegistry({"local": local})
    with capture_logs() as logged:
        await registry.warm_up(["local"])
    assert [line["event"] for line in logged] == ["provider_unusable"]
    own = local.model_copy(update={"patience": 0.0})
    with pytest.raises(ProviderBusy, match="can't be reached"):
        await step(ProviderRegistry({"local": own}).for_agent("local", "m", ()))
