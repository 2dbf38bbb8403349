"""The session feed: tells its followers what happens in a session while it happens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gateway.sessions.entries import Entry


class Follower(Protocol):
    """Follows one session. Called on the event loop for everyone who writes, so it must be quick and must not raise."""

    def on_entries(self, entries: Sequence[Entry]) -> None:
        """Take entries that were committed, in the order of their `seq`."""

    def on_text(self, turn: str, delta: str) -> None:
        """Take the next piece of the text that a turn is writing. `on_entries` gets the whole text later."""

    def on_removed(self) -> None:
        """Learn that the session was deleted or archived."""


class SessionFeed:
    """The followers of each session, by its key. A session without followers costs one lookup for each change."""

    def __init__(self) -> None:
        self._followers: dict[str, list[Follower]] = {}
        self._watchers: list[Callable[[str], None]] = []

    @property
    def session_count(self) -> int:
        """How many sessions are followed."""
        return len(self._followers)

    @contextmanager
    def followed(self, key: str, follower: Follower) -> Iterator[None]:
        """Let `follower` follow the session while inside. It is told of everything that is committed from now on."""
        followers = self._followers.setdefault(key, [])
        followers.append(follower)
        try:
            yield
        finally:
            followers.remove(follower)
            if not followers:
                self._followers.pop(key, None)

    @contextmanager
    def watched(self, on_change: Callable[[str], None]) -> Iterator[None]:
        """Call `on_change` with the key of each session that changes or is removed while inside."""
        self._watchers.append(on_change)
        try:
            yield
        finally:
            self._watchers.remove(on_change)

    def appended(self, key: str, entries: Sequence[Entry]) -> None:
        for on_change in self._watchers:
            on_change(key)
        if key in self._followers:
            for follower in tuple(self._followers[key]):
                follower.on_entries(entries)

    def wrote(self, key: str, turn: str, delta: str) -> None:
        if key in self._followers:
            for follower in tuple(self._followers[key]):
                follower.on_text(turn, delta)

    def removed(self, key: str) -> None:
        for on_change in self._watchers:
            on_change(key)
        for follower in tuple(self._followers.get(key, ())):
            follower.on_removed()
