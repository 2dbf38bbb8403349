import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from config import ProviderKind, ProviderSettings
from gateway.agent.protocol import Closable
from gateway.agent.providers.offline import OfflineProvider
from gateway.agent.providers.registry import ProviderRegistry, open_provider


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


def test_no_sdk_is_imported_before_it_is_used() -> None:
    """Also not where a provider of that kind is configured: the start of the daemon does not wait for it."""
    program = (
        "import sys; from config import ProviderSettings as S; "
        "from gateway.agent.providers.registry import ProviderRegistry as R; "
        "import gateway.agent.loop, gateway.agent.toolbox; "
        "R({kind: S.model_validate({'kind': kind, 'api_key': 'k'}) for kind in ('openai', 'anthropic')}); "
        "sys.exit(bool({'openai', 'anthropic', 'httpx2', 'aiohttp', 'markdown_it'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


async def test_a_broken_sdk_does_not_stop_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    local = ProviderSettings.model_validate({"kind": "openai", "base_url": "http://127.0.0.1:9"})
    with capture_logs() as logged:
        await ProviderRegistry({"local": local}).warm_up(["local"])
    assert [line["event"] for line in logged] == ["provider_unusable"]
