"""A program that uses the session API of daemons that die, repeats what got no answer, and follows its session."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from gateway.http.server import CONTROL_NAME, short_socket_path
from tests.crash.checks import Allowed, check_files_and_tools
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.scripted_agent import END
from tests.crash.stored import inbox, transcripts
from tests.polling import until

Json = dict[str, Any]  # Any: responses have different shapes.

REQUEST_TIMEOUT = ClientTimeout(total=60)
RETRY_DELAY = 0.02
CHANGES = {"complete": "completed", "cancel": "cancelled", "resume": "active"}


class SessionFailed(Exception):
    """A turn has killed so many daemons that the session has ended in error."""


@dataclass(slots=True, kw_only=True)
class ApiProgram:
    """`steps` are prompts, which begin with their keys, and the names of requests in `CHANGES`.

    A step is done when it has got its response. The next daemon gets the same request again otherwise.
    """

    spec: DaemonSpec
    steps: Sequence[str]
    session: Json = field(default_factory=dict)
    created: int = 0
    """How often a session was requested. Each death can leave one that the program does not know."""
    done: int = 0
    has_failed: bool = False
    accepted: dict[str, str] = field(default_factory=dict)
    """The ids of accepted prompts by their keys."""
    events: list[tuple[int, Json]] = field(default_factory=list)
    """The position and the content of each event that has one."""

    async def work(self) -> None:
        """Take all steps that are left, and wait until every prompt has its outcome and the reader knows of it."""
        await until((self.spec.data_dir / CONTROL_NAME).exists)
        with short_socket_path(self.spec.data_dir / CONTROL_NAME) as path:
            async with ClientSession(
                "http://gatehouse", connector=UnixConnector(path), timeout=REQUEST_TIMEOUT
            ) as http:
                if not self.session:
                    self.created += 1
                    self.session = await self._call(http, "POST", "/api/sessions", {})
                reading = asyncio.create_task(self._follow(http), name="follow")
                try:
                    while self.done < len(self.steps) and not self.has_failed:
                        try:
                            await self._take(http, self.steps[self.done])
                        except SessionFailed:
                            self.has_failed = True
                        else:
                            self.done += 1
                    await until(lambda: self._is_settled(http), within=120)
                finally:
                    reading.cancel()
                    await asyncio.wait({reading})

    async def _take(self, http: ClientSession, step: str) -> None:
        path = f"/api/sessions/{self.session['id']}"
        if step == "cancel":
            changed = await self._call(http, "DELETE", path, {})
        elif step in CHANGES:
            changed = await self._call(http, "POST", f"{path}/{step}", {})
        else:
            key = step.split(maxsplit=1)[0]
            for _ in range(2):  # The second one must change nothing.
                message = await self._call(http, "POST", f"{path}/prompt", {"text": step}, key)
                assert self.accepted.setdefault(key, message["id"]) == message["id"], "the key was forgotten"
            return
        if changed["status"] == "error":
            raise SessionFailed
        assert changed["status"] == CHANGES[step], changed

    async def _call(self, http: ClientSession, method: str, path: str, body: Json, key: str | None = None) -> Json:
        """Repeat a request until the daemon responds to it."""
        headers = {"Idempotency-Key": key} if key is not None else {}
        while True:
            try:
                async with http.request(method, path, json=body, headers=headers) as response:
                    found: Json = await response.json(content_type=None)
            except (ClientError, OSError, ValueError):
                await asyncio.sleep(RETRY_DELAY)  # It has died, or does not listen yet.
                continue
            if response.status == 503:
                await asyncio.sleep(RETRY_DELAY)
                continue
            if response.status == 409 and " error" in found["detail"]:
                raise SessionFailed
            assert response.status < 300, (method, path, found)
            return found

    async def _follow(self, http: ClientSession) -> None:
        """Read the events of the session, and go on after the last one with each new connection."""
        while True:
            last = f"{self.session['id']}:{self.events[-1][0] if self.events else 0}"
            with suppress(ClientError, OSError, ValueError):
                async with http.get(
                    f"/api/sessions/{self.session['id']}/events",
                    headers={"Last-Event-ID": last},
                    timeout=ClientTimeout(total=None),
                ) as response:
                    assert response.status in (200, 503), await response.text()
                    name = position = ""
                    async for line in response.content:
                        field_name, _, value = line.decode().rstrip("\n").partition(": ")
                        if field_name == "event":
                            name = value
                        elif field_name == "id":
                            position = value.rpartition(":")[2]
                        elif field_name == "data" and position:
                            self.events.append((int(position), {"name": name, **json.loads(value)}))
                        elif not line.strip():
                            name = position = ""
            await asyncio.sleep(RETRY_DELAY)

    async def _is_settled(self, http: ClientSession) -> bool:
        detail = await self._call(http, "GET", f"/api/sessions/{self.session['id']}", {})
        stored = {(each["id"], each["seq"]) for each in detail["messages"]}
        # The text of a turn that was stopped changes with its end, in an event without a position of its own.
        read = {(each["id"], each["seq"]) for _, each in self.events if each["name"] == "message"}
        return not detail["isRunning"] and {each for each, _ in stored} == {each for each, _ in read}

    def check(self, deaths: int) -> None:
        """Check the files after the last daemon was stopped, not killed."""
        check_files_and_tools(self.spec, Allowed(deaths=deaths))
        found = transcripts(self.spec)
        assert len(found) <= 1 + deaths
        (own,) = (entries for entries in found.values() if entries[0]["id"] == self.session["id"])
        accepted = inbox(self.spec)
        assert sorted(each.event for each in accepted) == sorted(self.accepted.values()), "accepted twice or never"
        states = {each.event: each.state for each in accepted}
        asked = Counter(entry["event_id"] for entry in own if entry["type"] == "user")
        for key, message in self.accepted.items():
            self._check_outcome(own, key, message, states[message], asked[message])
        changes = [entry["value"] for entry in own if entry["type"] == "status"]
        assert "error" not in changes or "dead" in states.values()
        wanted = [CHANGES[step] for step in self.steps[: self.done] if step in CHANGES]
        assert [change for change in changes if change != "error"] == wanted
        positions = [position for position, _ in self.events]
        assert positions == sorted(set(positions)), "an event came twice or in the wrong order"

    def _check_outcome(self, own: list[Json], key: str, message: str, state: str, times: int) -> None:
        if state == "abandoned":  # Dropped while it waited, or by a stop before the model was asked.
            assert times <= 1
            assert any(entry["type"] == "system" for entry in own), "dropped without a word"
            return
        assert state in ("answered", "dead"), (key, state)
        assert times == 1, (key, times)
        turn = next(entry["turn"] for entry in own if entry.get("event_id") == message)
        ends = [entry["outcome"] for entry in own if entry["type"] == "turn_end" and entry["turn"] == turn]
        assert len(ends) == 1, (key, ends)
        answers = [entry for entry in own if entry["type"] == "assistant" and entry["turn"] == turn]
        if ends == ["answered"]:
            whole = [entry for entry in answers if entry["content"].endswith(END)]
            assert len(whole) == 1, (key, answers)
            assert key in whole[0]["content"]
