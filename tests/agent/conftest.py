from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.agent.tools import ToolContext


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    moment = datetime(2026, 3, 1, 11, 0, 5, tzinfo=UTC)
    return ToolContext(workspace=workspace, memory=tmp_path / "memory" / "scope", now=lambda: moment)
