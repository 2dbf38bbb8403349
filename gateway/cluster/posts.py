"""Posts: of a bot that may have only one connection, such as one that polls, one node of the cluster receives."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import structlog

from gateway.cluster.membership import Post
from gateway.contract import Lead
from gateway.errors import NotAccepted

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class _Candidate:
    """A channel of this node that waits for its post, or receives."""

    def __init__(self) -> None:
        self.leads = asyncio.Event()
        self.receiving: asyncio.Task[None] | None = None


class _PostLead:
    """The `Lead` of a channel of this node."""

    def __init__(self, posts: "Posts", post: Post) -> None:
        self._posts = posts
        self._post = post

    async def __call__(self, receive: Callable[[], Awaitable[None]], /) -> None:
        await self._posts.receive(self._post, receive)

    def confirm(self) -> None:
        self._posts.confirm(self._post)


class Posts:
    """The posts that this node holds, and the channels that wait for one. `ClusterNode` claims them.

    `safe_seconds_left` returns for how long this node may still act.
    """

    def __init__(self, safe_seconds_left: Callable[[], float]) -> None:
        self._safe_seconds_left = safe_seconds_left
        self._candidates: dict[Post, _Candidate] = {}
        self.held: set[Post] = set()

    def lead(self, channel: str, account: str) -> Lead:
        """Return the function with which a channel receives while this node holds its post."""
        return _PostLead(self, (channel, account))

    @property
    def unused(self) -> set[Post]:
        """Posts that this node holds, and whose channel does not run: it was removed, or it has failed."""
        return self.held - self._candidates.keys()

    @property
    def wanted(self) -> set[Post]:
        """Posts of channels that run at this node, and that it does not hold."""
        return self._candidates.keys() - self.held

    def gain(self, post: Post) -> None:
        self.held.add(post)
        if (candidate := self._candidates.get(post)) is not None:
            candidate.leads.set()
        log.info("post_taken", channel=post[0], account=post[1])

    async def stop(self, posts: Collection[Post]) -> None:
        """Stop to receive. When this returns, no request for messages of these bots is under way."""
        for post in posts:
            self.held.discard(post)
            candidate = self._candidates.get(post)
            if candidate is not None:
                candidate.leads.clear()
                if candidate.receiving is not None:
                    candidate.receiving.cancel()
                    await asyncio.wait({candidate.receiving})
            log.info("post_given_back", channel=post[0], account=post[1])

    def confirm(self, post: Post) -> None:
        """Raise `NotAccepted` unless this node holds a post, and for long enough for one more request."""
        if post not in self.held or self._safe_seconds_left() <= 0:
            raise NotAccepted("Another node may receive for this bot.")

    async def receive(self, post: Post, receive: Callable[[], Awaitable[None]]) -> None:
        candidate = self._candidates[post] = _Candidate()
        if post in self.held:
            candidate.leads.set()

        async def run() -> None:
            await receive()

        try:
            while True:
                await candidate.leads.wait()
                task = candidate.receiving = asyncio.get_running_loop().create_task(run(), name=f"receive:{post}")
                try:
                    await asyncio.wait({task})
                finally:
                    task.cancel()
                    await asyncio.wait({task})
                    candidate.receiving = None
                with suppress(asyncio.CancelledError):  # The post was given back.
                    task.result()
        finally:
            if self._candidates.get(post) is candidate:
                del self._candidates[post]
