"""Documents that a person uploads to the web channel, through a whole gateway to a model."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from config import Settings
from gateway.build import open_daemon
from tests.agent.wire import OPENAI, Call, Reply, WireServer, serving
from tests.documents.samples import docx, epub, paragraph, pdf, row, xlsx

OK = OPENAI.answer("I have read it.")
TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Web:
    client: ClientSession
    socket: ClientWebSocketResponse
    model: WireServer

    async def send(self, text: str, **files: bytes) -> str:
        """Upload files, send them with a message, and return what the model gets of it."""
        told = []
        for name, content in files.items():
            async with self.client.post(f"/files?name={name.replace('__', '.')}", data=content) as response:
                told.append(await response.json())
        await self.socket.send_json({"type": "message", "id": text, "text": text, "files": told})
        while (await self.socket.receive_json())["type"] != "message":
            pass
        said = [message["content"] for message in self.model.requests[-1].body["messages"] if message["role"] == "user"]
        return said[-1] if isinstance(said[-1], str) else json.dumps(said[-1])

    def result(self) -> str:
        """Return the last result of a tool that the model got."""
        results: list[str] = [
            message["content"] for message in self.model.requests[-1].body["messages"] if message["role"] == "tool"
        ]
        return results[-1]


@asynccontextmanager
async def web_chat(folder: Path, *script: Reply) -> AsyncIterator[Web]:
    async with asyncio.timeout(TIMEOUT), serving(OPENAI, *script) as model:
        tables: dict[str, Any] = {  # Any: tables of any shape.
            "gateway": {"data_dir": folder / "data"},
            "http": {"port": 0},
            "providers": {"house": model.table()},
            "agents": {"main": {"provider": "house", "model": "m"}},
        }
        async with open_daemon(Settings.model_validate(tables)) as daemon, asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            tasks.create_task(daemon.run(ready.set), name="daemon")
            await ready.wait()
            token = (folder / "data/http.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            async with (
                ClientSession(str(daemon.server.url), headers=headers) as client,
                client.ws_connect("/web/ws") as socket,
            ):
                yield Web(client=client, socket=socket, model=model)
            daemon.stop()


async def test_short_documents_become_part_of_the_message(tmp_path: Path) -> None:
    async with web_chat(tmp_path, OK) as web:
        asked = await web.send(
            "look",
            wrong__txt=pdf("Text of the PDF"),
            letter__docx=docx(paragraph("Text of the letter")),
            costs__xlsx=xlsx({"Costs": row(1, "tea", 2)}),
            book__epub=epub("<p>Text of the book"),
            page__html=b"<!doctype html><p>Text of the <b>page</b>.",
        )
    assert "[file: wrong.txt, application/pdf, saved as /attachments/" in asked
    assert "; its text:]\n```\n[Page 1 of 1]\nText of the PDF\n```" in asked
    assert "```\nText of the letter\n```" in asked
    assert "```\n[Sheet Costs, rows 1 to 1 of 1]\n1 | tea | 2\n```" in asked
    assert "```\nText of the book\n```" in asked
    assert "```\nText of the **page**.\n```" in asked


async def test_a_long_document_is_saved_and_read_by_its_pages(tmp_path: Path) -> None:
    long = pdf(*(f"Line of page {number}\n" + "x" * 300 for number in range(1, 201)))
    async with web_chat(tmp_path, OK) as web:
        asked = await web.send("first", long__pdf=long)
        assert "; read_file shows its text, which is long]" in asked
        assert "Line of page" not in asked
        path = asked.partition("saved as ")[2].partition(";")[0]
        call = Call(id="c1", name="read_file", arguments=[json.dumps({"path": path, "first_page": 150})])
        web.model.script[:] = [OPENAI.answer(calls=[call]), OK]
        await web.send("second")
        assert web.result().startswith("[Page 150 of 200]\nLine of page 150\n")


async def test_a_document_that_cannot_be_read_is_saved_with_the_reason(tmp_path: Path) -> None:
    async with web_chat(tmp_path, OK) as web:
        asked = await web.send("look", scan__pdf=pdf(""), broken__docx=docx(paragraph("x"))[:-40])
    assert "It has no text: its pages are pictures, probably scans, or empty]" in asked
    assert "It is damaged, or something else than it seems to be]" in asked
