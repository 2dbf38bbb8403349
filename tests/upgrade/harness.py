"""Data of a release to rehearse with, and a rehearsal in the process of the test."""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from config import StorageSettings, load
from gateway.data_dir import prepare_data_dir
from gateway.observability.recent_log import RecentLog
from gateway.storage_copy.copy import copy_storage
from gateway.storage_copy.files import FileReader
from gateway.storage_copy.open import open_copy_target
from gateway.upgrade.rehearsal import Rehearsal, Report, StepState
from tests.versions import story
from tests.versions.fixture import read_facts, unpack, versions

NOWHERE = "http://127.0.0.1:9"
"""Nothing answers there."""
NEWEST = max(versions(), key=lambda version: read_facts(version).made)


def released(version: str, folder: Path, *, api_base: str = NOWHERE, model_url: str = NOWHERE) -> Path:
    """Unpack the data of a release, and write its configuration. Returns the file."""
    data = unpack(version, folder)
    config = folder / "gatehouse.toml"
    config.write_text(story.config(str(data), api_base, model_url))
    config.chmod(0o600)
    return config


def moved(config: Path, url: str) -> StorageSettings:
    """Copy the data of a release to a database, and let the configuration name that."""
    config.write_text(f'{config.read_text()}\n[storage]\nurl = "{url}"\n')
    storage, data = load(config, {}).settings.storage, config.parent / "data"
    prepare_data_dir(data)
    with closing(FileReader(data)) as source, open_copy_target(storage, data) as target:
        copy_storage(source, target)
    return storage


async def rehearse(config: Path, *, scratch: Path | None = None) -> Report:
    rehearsal = Rehearsal(
        partial(load, config, {}),
        lambda: load(config, {}).settings.storage,
        recent=RecentLog(),
        scratch=scratch,
    )
    return await rehearsal.run()


def failure(report: Report) -> tuple[str, str]:
    """Return the name and the reason of the step that has failed."""
    assert not report.is_ok
    return next((step.name, step.detail) for step in report.steps if step.state is StepState.FAILED)


def contents(folder: Path) -> Mapping[str, str]:
    """Return a digest of every file, and the names of all else. The lock has the number of the last process."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if path.name != "gatehouse.lock"
    }
