"""Prompts: keys that make them safe to repeat, files, full queues, full disks, and clients that leave."""

import asyncio
import base64
from contextlib import suppress
from pathlib import Path

from gateway.contract import TokenScope
from tests.api.harness import Json, api
from tests.daemon.harness import Parrot, settings
from tests.disks import fill, small_disk
from tests.polling import until


def prompt_path(session: Json) -> str:
    return f"/api/sessions/{session['id']}/prompt"


def attached(name: str, content: bytes) -> Json:
    return {"name": name, "data": base64.b64encode(content).decode()}


async def test_the_response_to_a_repetition_is_the_same(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        first = await program.prompt(session, "once", Idempotency_Key="k")
        await program.answered(session)
        assert await program.prompt(session, "once", Idempotency_Key="k") == first
    async with api(settings(tmp_path), Parrot.answering) as program:
        assert await program.prompt(session, "once", Idempotency_Key="k") == first


async def test_a_prompt_with_an_uploaded_file_can_be_repeated(tmp_path: Path) -> None:
    """The file was taken by the first one."""
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        stored = await program.upload("notes.txt", b"buy milk")
        body = {"text": "read", "attachments": [{"name": "notes.txt", "ref": stored["ref"]}]}
        status, first = await program.call("POST", prompt_path(session), body, Idempotency_Key="k")
        assert status == 202
        await program.answered(session)
        status, again = await program.call("POST", prompt_path(session), body, Idempotency_Key="k")
        assert (status, again["id"]) == (202, first["id"])
        status, _ = await program.call("POST", prompt_path(session), {**body, "text": "x"}, Idempotency_Key="k")
        assert status == 422
        status, _ = await program.call("POST", prompt_path(session), body, Idempotency_Key="another")
        assert status == 422
        assert len((await program.read(session))["messages"]) == 2


async def test_an_uploaded_file_can_be_attached_once(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        stored = await program.upload("notes.txt", b"buy milk")
        both = [{"name": name, "ref": stored["ref"]} for name in ("a.txt", "b.txt")]
        status, problem = await program.call("POST", prompt_path(session), {"text": "read", "attachments": both})
        assert (status, "once" in problem["detail"]) == (422, True)
        status, _ = await program.call("POST", prompt_path(session), {"text": "read", "attachments": both[:1]})
        assert status == 202
        await program.answered(session)


async def test_a_key_belongs_to_the_content_of_its_files_too(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        body = {"text": "read", "attachments": [attached("a.txt", b"aaaa")]}
        status, first = await program.call("POST", prompt_path(session), body, Idempotency_Key="k")
        assert status == 202
        status, again = await program.call("POST", prompt_path(session), body, Idempotency_Key="k")
        assert (status, again["id"]) == (202, first["id"])
        other = {"text": "read", "attachments": [attached("a.txt", b"bbbb")]}
        status, problem = await program.call("POST", prompt_path(session), other, Idempotency_Key="k")
        assert (status, "Idempotency-Key" in problem["detail"]) == (422, True)
        await program.answered(session)


async def test_a_key_counts_for_one_session_and_one_token(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        one, two = await program.start(), await program.start()
        other = await program.token_for(TokenScope.PROMPT, TokenScope.READ)
        ids = {
            (await program.prompt(one, "a", Idempotency_Key="k"))["id"],
            (await program.prompt(two, "b", Idempotency_Key="k"))["id"],
            (await other.prompt(one, "c", Idempotency_Key="k"))["id"],
        }
        assert len(ids) == 3
        await program.answered(one, 2)
        await program.answered(two)


async def test_prompts_with_one_key_at_the_same_time_are_one_prompt(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with api(settings(tmp_path), parrot.installed) as program:
        session = await program.start()
        made = await asyncio.gather(*(program.prompt(session, "once", Idempotency_Key="k") for _ in range(20)))
        assert len({message["id"] for message in made}) == 1
        await program.answered(session)
        assert len(parrot.heard) == 1
        outcomes = await asyncio.gather(
            *(
                program.call("POST", prompt_path(session), {"text": str(number)}, Idempotency_Key="other")
                for number in range(10)
            )
        )
        assert sorted(status for status, _ in outcomes) == [202, *[422] * 9]
        await program.answered(session, 2)


async def test_odd_keys_are_refused(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        for key in ("", " ", "two words", "ü", "a\tb", "x" * 256):
            status, problem = await program.call("POST", prompt_path(session), {"text": "x"}, Idempotency_Key=key)
            assert (status, "Idempotency-Key" in problem["detail"]) == (422, True), key
        both = [("Idempotency-Key", "a"), ("Idempotency-Key", "b"), *program.authorization.items()]
        url = f"{program.daemon.server.url}{prompt_path(session)}"
        response = await program.http.post(url, json={"text": "x"}, headers=both)
        assert response.status == 422
        for key in ("x" * 255, "!~", "../../x", "{}", "%00", "a;b=c,d"):
            await program.prompt(session, "hello", Idempotency_Key=key)
        await program.answered(session, 6)


async def test_a_full_queue_is_reported_and_empties_itself(tmp_path: Path) -> None:
    made = settings(tmp_path)
    made = made.model_copy(update={"gateway": made.gateway.model_copy(update={"max_queued_per_session": 3})})
    slow = Parrot()
    async with api(made, slow.installed) as program:
        session = await program.start()
        await program.prompt(session, "0", Idempotency_Key="first")
        await slow.is_asked.wait()
        for number in range(1, 4):
            await program.prompt(session, str(number))
        response = await program.request("POST", prompt_path(session), {"text": "too many"})
        problem = await response.json(content_type=None)
        assert (response.status, response.headers["Retry-After"]) == (429, "5")
        assert problem["detail"] == "3 prompts are already waiting for an answer. Try again later."
        # A repetition adds nothing to the queue.
        await program.prompt(session, "0", Idempotency_Key="first")
        slow.may_answer.set()
        texts = await program.answered(session, 4)
        assert [text for role, text in texts if role == "user"] == ["0", "1", "2", "3"]
        await program.prompt(session, "again")
        await program.answered(session, 5)


async def test_a_thousand_prompts_at_once_are_answered_once_each(tmp_path: Path) -> None:
    made = settings(tmp_path, api={"rate_limit": 0})
    made = made.model_copy(update={"gateway": made.gateway.model_copy(update={"max_queued_per_session": 1000})})
    async with api(made, Parrot.answering) as program:
        session = await program.start()
        await asyncio.gather(*(program.prompt(session, f"p{number}") for number in range(1_000)))
        texts = await program.answered(session, 1_000)
        answers = [text for role, text in texts if role == "agent"]
        assert sorted(answers) == sorted(f"heard: p{number}" for number in range(1_000))


async def test_a_client_that_leaves_cancels_nothing(tmp_path: Path) -> None:
    """The prompt arrives whole, and the client does not wait for the response. Or it stops reading the events."""
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        host, port = "127.0.0.1", program.daemon.server.port
        for number in range(5):
            _, writer = await asyncio.open_connection(host, port)
            body = b'{"text": "p%d"}' % number
            writer.write(
                f"POST {prompt_path(session)} HTTP/1.1\r\nHost: {host}:{port}\r\nIdempotency-Key: k{number}\r\n"
                f"Authorization: Bearer {program.token}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            writer.transport.abort()
        reading = await program.request("GET", f"/api/sessions/{session['id']}/events")
        await program.prompt(session, "the last")
        await slow.is_asked.wait()
        reading.close()
        slow.may_answer.set()
        # A request that was cut off may have come or not. It can be repeated, and comes once.
        for number in range(5):
            await program.prompt(session, f"p{number}", Idempotency_Key=f"k{number}")
        texts = await program.answered(session, 6)
        answers = sorted(text for role, text in texts if role == "agent")
        assert answers == sorted([*(f"heard: p{number}" for number in range(5)), "heard: the last"])


async def test_nothing_is_accepted_while_the_gateway_stops(tmp_path: Path) -> None:
    slow = Parrot()
    async with api(settings(tmp_path), slow.installed) as program:
        session = await program.start()
        await program.prompt(session, "first")
        await slow.is_asked.wait()
        program.daemon.stop()
        refused: list[int] = []
        with suppress(OSError):  # The server closes in the end.

            async def is_refused() -> bool:
                response = await program.request("POST", prompt_path(session), {"text": "late"})
                problem = await response.json(content_type=None)
                if response.status == 503:
                    assert response.headers["Retry-After"]
                    assert "shutting down" in problem["detail"]
                refused.append(response.status)
                return response.status == 503

            await until(is_refused)
        assert refused[-1] == 503
        slow.may_answer.set()
    async with api(settings(tmp_path), Parrot.answering) as program:
        texts = await program.answered(session, len(refused))
        assert [text for role, text in texts if role == "user"] == ["first", *["late"] * (len(refused) - 1)]


async def test_a_full_disk_is_reported_and_nothing_is_half_done(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        made = settings(disk, api={"max_active_sessions": 1000, "rate_limit": 0})
        async with api(made, Parrot.answering) as program:
            session = await program.start()
            await program.prompt(session, "before")
            await program.answered(session)
            ballast = disk / "ballast"
            path = f"/api/sessions/{session['id']}"
            calls: list[tuple[str, str, Json | None]] = [
                ("POST", "/api/sessions", {"title": "full"}),
                ("POST", prompt_path(session), {"text": "full"}),
                ("PATCH", path, {"title": "full"}),
                ("POST", f"{path}/complete", None),
                ("DELETE", path, None),
                ("POST", f"{path}/archive", None),
            ]

            async def is_full() -> bool:
                await asyncio.to_thread(fill, ballast)
                status, _ = await program.call("PATCH", path, {"title": "x" * 80})
                return status == 503

            await until(is_full)
            for method, target, body in calls:
                await asyncio.to_thread(fill, ballast)
                response = await program.request(method, target, body)
                problem = await response.json(content_type=None)
                assert response.status in (503, 409), (method, target, problem)
                assert "disk" in problem["detail"] or response.status == 409, problem
            status, detail = await program.call("GET", path)
            assert (status, detail["status"]) == (200, "active")
            ballast.unlink()

            async def has_space() -> bool:
                status, _ = await program.call("POST", prompt_path(session), {"text": "after"}, Idempotency_Key="k")
                return status == 202

            await until(has_space)
            texts = await program.answered(session, 2)
            assert [text for role, text in texts if role == "user"] == ["before", "after"]


async def test_attachments_have_limits(tmp_path: Path) -> None:
    made = settings(tmp_path, files={"max_bytes": 1000})
    async with api(made, Parrot.answering) as program:
        session = await program.start()

        async def send(*files: Json) -> int:
            status, _ = await program.call("POST", prompt_path(session), {"text": "x", "attachments": list(files)})
            return status

        assert await send(attached("exact.bin", b"x" * 1000)) == 202
        assert await send(attached("more.bin", b"x" * 1001)) == 413
        assert await send(*[attached(f"{number}.txt", b"x") for number in range(100)]) == 202
        assert await send(*[attached(f"{number}.txt", b"x") for number in range(101)]) == 422
        assert await send(attached("empty.txt", b"")) == 202
        odd = ("../../etc/passwd", "/etc/passwd", "..", "a\0b", "a\nb", "\u202egnp.exe", "CON", "x" * 200, " ")
        for name in odd:
            assert await send(attached(name, b"x")) == 202, name
        for wrong in (
            {"name": "", "data": "YQ=="},
            {"name": "x" * 201, "data": "YQ=="},
            {"name": "x", "data": "YQ"},
            {"name": "x", "data": "Y Q=="},
            {"name": "x", "data": 5},
            {"name": "x", "ref": "../spool.db"},
            {"name": "x", "ref": "..", "data": "YQ=="},
            {"name": "x", "ref": "\0"},
            {"name": "x", "ref": "x" * 300},
            {"data": "YQ=="},
            {"name": "x", "data": "YQ==", "colour": "red"},
        ):
            assert await send(wrong) == 422, wrong
        await program.answered(session, 3 + len(odd))
        found = await asyncio.to_thread(lambda: list(tmp_path.rglob("*passwd*")))
        assert not [path for path in found if "data/files" not in str(path)]
