import subprocess
import sys

from config import ProviderKind, ProviderSettings
from gateway.agent.offline import OfflineProvider
from gateway.agent.providers import open_provider


def test_the_offline_provider_is_opened_by_its_kind() -> None:
    assert isinstance(open_provider(ProviderSettings(kind=ProviderKind.OFFLINE)), OfflineProvider)


def test_no_sdk_is_imported_for_the_agent_itself() -> None:
    program = (
        "import sys, gateway.agent.loop, gateway.agent.providers, gateway.agent.offline, gateway.agent.toolbox; "
        "sys.exit(bool({'openai', 'anthropic', 'aiohttp', 'markdown_it'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0
