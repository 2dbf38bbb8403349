"""The homes of coding agents: the folder in which the program of a session keeps its own state, and its ACP session."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from config.files import make_private_directory, write_atomically
from gateway.files.store import folder_of
from gateway.private_files import CREATE, delete_tree, opened, write_all

log = structlog.get_logger()

_RECORD = "session.json"
_GIT_CONFIG = b"[user]\n\tname = Coding agent\n\temail = agent@gatehouse.invalid\n"
"""Without an identity, git makes no commits. That of the repository has precedence."""


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The ACP session that a program has for one of our sessions. It knows the transcript since `since`."""

    agent: str
    acp_session: str
    since: int
    """The `seq` of the last entry when the ACP session was started."""


async def _nothing(_session: str) -> None:
    pass


class AgentHomes:
    """`root` has a folder for each session that a coding agent has answered in."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.before_removal: Callable[[str], Awaitable[None]] = _nothing
        """Ends the program of a session. It would write to the folder again."""

    def prepare(self, session: str) -> Path:
        """Return the home of the program of a session. Blocks."""
        folder = self._root / folder_of(session)
        for each in (self._root, folder, folder / "home"):
            make_private_directory(each)
        # The program may have put a link in its place. `CREATE` follows none, and replaces nothing.
        with suppress(FileExistsError), opened(folder / "home" / ".gitconfig", CREATE) as descriptor:
            write_all(descriptor, _GIT_CONFIG)
        return folder / "home"

    def read(self, session: str) -> AgentRecord | None:
        """Return the record of a session, if there is one that can be read. Blocks."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self._root / folder_of(session) / _RECORD).read_bytes(), type=AgentRecord)
        return None

    def write(self, session: str, record: AgentRecord) -> bool:
        """Store the record. Return False if the disk refuses: then the next program gets the transcript. Blocks."""
        try:
            write_atomically(self._root / folder_of(session) / _RECORD, msgspec.json.encode(record))
        except OSError as error:
            log.warning("agent_record_not_written", session=session, reason=str(error))
            return False
        return True

    async def remove(self, session: str) -> bool:
        """Delete the folder of a deleted session. Return False if the disk refuses."""
        folder = self._root / folder_of(session)
        if not await asyncio.to_thread(folder.exists):
            return True
        await self.before_removal(session)
        return await asyncio.to_thread(_remove, folder)

    def are_empty(self) -> bool:
        """Return whether no session has a home here. Blocks."""
        try:
            return not any(self._root.iterdir())
        except OSError:
            return True

    async def remove_orphans(self, keys: Iterable[str], archived: Iterable[str] = ()) -> None:
        """Delete the folders of all sessions except `keys` and those whose transcripts are `archived`."""
        kept = {*map(folder_of, keys), *(name.removesuffix(".jsonl") for name in archived)}

        def sweep() -> None:
            if not self._root.is_dir():
                return
            for folder in self._root.iterdir():
                if folder.name not in kept:
                    _remove(folder)

        await asyncio.to_thread(sweep)


def _remove(folder: Path) -> bool:
    try:
        delete_tree(folder)
    except OSError as error:
        log.warning("agent_home_not_removed", folder=str(folder), reason=str(error))
        return False
    return True
