"""Files over HTTP, as the page uploads and downloads them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import pytest

from config import Settings
from gateway.database import migrate
from gateway.errors import RefusedForNow
from gateway.files.identify import UNKNOWN
from gateway.files.shared import shared_files
from gateway.files.store import UPLOADS, FileStore
from gateway.files.uploads import UNSENT_KEPT_FOR, FileRoutes
from gateway.http.responses import HttpError
from tests.files.harness import chunks, left, opened
from tests.files.samples import png
from tests.http.harness import BEARER, Running, serving
from tests.postgres.fixtures import NewProxy

RAW = {**BEARER, "Content-Type": "application/octet-stream"}


@asynccontextmanager
async def house(tmp_path: Path) -> AsyncIterator[tuple[Running, FileStore]]:
    store = await opened(tmp_path, budget=10**9)
    files = FileRoutes(store, lambda: 2_000_000, lambda: datetime.now(UTC))
    async with serving(tmp_path, files.routes()) as running:
        yield running, store


async def test_an_upload_is_stored_and_described_by_its_content(tmp_path: Path) -> None:
    async with house(tmp_path) as (running, store):
        async with running.client.post("/files?name=../cat.txt", data=png(), headers=RAW) as response:
            told = await response.json()
        assert response.status == 200
        assert (told["name"], told["media_type"], told["kind"], told["size"]) == (
            "_cat.txt",
            "image/png",
            "image",
            len(png()),
        )
        assert await store.read(f"{UPLOADS}/{told['ref']}", 1000) == png()


async def test_an_upload_may_be_larger_than_other_bodies(tmp_path: Path) -> None:
    async with house(tmp_path) as (running, _):
        status = await running.status("POST", "/files?name=a", data=BytesIO(bytes(1_500_000)), headers=RAW)
    assert status == 200


async def test_a_large_upload_is_refused_with_or_without_a_content_length(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65_536)

    async with house(tmp_path) as (running, _):
        async with running.client.post("/files", data=BytesIO(bytes(2_000_001)), headers=RAW) as response:
            assert response.status == 413
            assert "limit is 2.0 MB" in (await response.json())["error"]
        try:
            async with running.client.post("/files", data=endless(), headers=RAW) as response:
                assert response.status == 413
        except ConnectionError:  # The client was still writing when it was cut off.
            pass
    assert left(tmp_path) == []


async def test_a_form_post_of_another_site_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as (running, _):
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json"):
            status = await running.status("POST", "/files", data=b"{}", headers={**BEARER, "Content-Type": kind})
            assert status == 415


async def test_a_file_is_sent_as_a_download(tmp_path: Path) -> None:
    async with house(tmp_path) as (running, store):
        await store.keep("s", "1-Größe.html", chunks(b"<script>alert(1)</script>"), limit=100)
        async with running.client.get("/files/s/1-Größe.html?name=Größe.html", headers=BEARER) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "application/octet-stream"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            disposition = response.headers["Content-Disposition"]
            assert disposition == "attachment; filename*=UTF-8''Gr%C3%B6%C3%9Fe.html"
            assert await response.read() == b"<script>alert(1)</script>"


async def test_a_picture_and_a_recording_have_their_type_for_the_page(tmp_path: Path) -> None:
    files = {"a.bin": (png(), "image/png"), "b.txt": (b"OggS\0", "audio/ogg"), "c.png": (b"<svg>", UNKNOWN)}
    async with house(tmp_path) as (running, store):
        for name, (content, kind) in files.items():
            await store.keep("s", name, chunks(content), limit=1000)
            async with running.client.get(f"/files/s/{name}", headers=BEARER) as response:
                assert response.headers["Content-Type"] == kind
                assert response.headers["Content-Disposition"].startswith("attachment;")


async def test_files_outside_the_store_cannot_be_downloaded(tmp_path: Path) -> None:
    async with house(tmp_path) as (running, _):
        for path in ("/files/s/none", "/files/..%2F..%2Fetc/passwd", "/files/.incoming/x", "/files/s/..%2Fx"):
            assert await running.status("GET", path, headers=BEARER) == 404


async def test_unsent_uploads_are_deleted_after_a_day(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.keep(UPLOADS, "a", chunks(b"x"), limit=1)
    files = FileRoutes(store, lambda: 1, lambda: datetime.now(UTC))
    await files.tidy()
    assert left(tmp_path) == [f"{UPLOADS}/a"]
    await FileRoutes(store, lambda: 1, lambda: datetime.now(UTC) + UNSENT_KEPT_FOR * 2).tidy()
    assert left(tmp_path) == []


async def test_a_file_of_another_node_that_cannot_be_fetched_now_is_not_called_missing(
    tmp_path: Path, database_url: str, new_proxy: NewProxy
) -> None:
    proxy = new_proxy(database_url)
    settings = Settings.model_validate({"storage": {"url": proxy.url}, "files": {"shared": "database"}})
    migrate.upgrade(settings.storage)
    stores = {name: FileStore(tmp_path / name, 10**9, shared_files(settings)) for name in ("here", "there")}
    for store in stores.values():
        await store.open()
    uploaded = await stores["there"].keep(UPLOADS, "0-a", chunks(b"x"), limit=1)
    files = FileRoutes(stores["here"], lambda: 1000, lambda: datetime.now(UTC))
    async with serving(tmp_path, files.routes()) as running:
        proxy.refuse()
        for request in (
            running.client.get(f"/files/{uploaded.ref}", headers=BEARER),
            running.client.post("/files?name=b", data=b"x", headers=RAW),
        ):
            async with request as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "5")
        with pytest.raises(RefusedForNow, match="can't be fetched now"):
            await files.find("0-a", "a")
        proxy.accept()
        assert (await files.find("0-a", "a")).size == 1
    with pytest.raises(HttpError, match="was not uploaded"):
        await files.find("0-b", "b")
