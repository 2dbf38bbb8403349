import subprocess
import sys

import pytest

from config import ProviderKind, ProviderSettings
from gateway.agent.offline import OfflineProvider
from gateway.agent.providers import open_provider
from gateway.errors import CannotStart


def test_the_offline_provider_is_opened_by_its_kind() -> None:
    assert isinstance(open_provider(ProviderSettings(kind=ProviderKind.OFFLINE)), OfflineProvider)


@pytest.mark.parametrize("kind", [kind for kind in ProviderKind if kind is not ProviderKind.OFFLINE])
def test_a_kind_of_a_later_version_is_refused_with_the_way_out(kind: ProviderKind) -> None:
    with pytest.raises(CannotStart, match=rf"providers\.mine\.kind.*{kind.value}.*offline"):
        open_provider(ProviderSettings(kind=kind), name="mine")


def test_no_sdk_is_imported_for_the_agent_itself() -> None:
    program = (
        "import sys, gateway.agent.loop, gateway.agent.providers, gateway.agent.offline, gateway.agent.toolbox; "
        "sys.exit(bool({'openai', 'anthropic', 'aiohttp', 'markdown_it'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0
