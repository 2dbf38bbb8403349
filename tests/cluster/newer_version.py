"""Makes newer versions of Gatehouse: the present source with one more migration each, and more in what nodes send."""

import re
import subprocess
from pathlib import Path
from shutil import copytree, ignore_patterns

from gateway.database.migrate import HEAD, REVISIONS
from tests.daemon_process import COMMAND, TIMEOUT, environment

ROOT = Path(__file__).parents[2]
NEXT, AFTER_NEXT = (f"{int(HEAD) + step:04}" for step in (1, 2))

_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, oldest = "{revision}", "{before}", "{oldest}"

def upgrade():
    op.create_table("test_{revision}", sa.Column("id", sa.Integer, primary_key=True))
    for table in ("inbox", "outbox", "arrival", "node", "session", "entry"):
        op.add_column(table, sa.Column("test_{revision}", sa.Integer, nullable=False, server_default=sa.text("0")))

def downgrade():
    for table in ("inbox", "outbox", "arrival", "node", "session", "entry"):
        op.drop_column(table, "test_{revision}")
    op.drop_table("test_{revision}")
"""


def newer_version(folder: Path, version: str, *revisions: str, allows_previous: bool = True) -> Path:
    """Write the source of a version with migrations to `revisions`, and return its folder.

    The last migration says whether the version before may use its result.
    """
    source = folder / version
    for name in ("config", "gateway", "channels"):
        # With the compiled modules, but without those that a process is writing.
        copytree(ROOT / name, source / name, ignore=ignore_patterns("*.pyc.*"))
    migrations = source / "gateway/database/migrations/versions"
    known = [*REVISIONS, *revisions]
    for before, revision in zip(known[len(REVISIONS) - 1 :], revisions, strict=False):
        oldest = before if allows_previous or revision != revisions[-1] else revision
        text = _MIGRATION.format(revision=revision, before=before, oldest=oldest)
        (migrations / f"{revision}_test.py").write_text(text)
    _replace(source / "gateway/database/migrate.py", r"^REVISIONS = .*$", f"REVISIONS = {tuple(known)!r}")
    _replace(source / "gateway/__init__.py", r"^__version__ = .*$", f'__version__ = "{version}"')
    # Fields that the present version does not know, in what nodes store for each other and send to each other.
    messages, routes = source / "gateway/contract/messages.py", source / "gateway/contract/routes.py"
    for name in ("Address", "Sender", "Inbound", "Outbound"):
        _replace(messages, rf"^class {name}\(.*:\n(    \"\"\"(.|\n)*?\"\"\"\n)", r"\g<0>    mood: str = 'new'\n")
    _replace(routes, r"^    scopes: frozenset\[TokenScope\] = .*$", r"\g<0>\n    mood: str = 'new'")
    return source


def run(source: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of another version, and return its result."""
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=home,
        env=environment(home, {"PYTHONPATH": str(source)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )


def _replace(path: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, path.read_text(), count=1, flags=re.MULTILINE)
    assert count, f"{pattern} is not in {path}"
    path.write_text(changed)
