"""Compares the fields that the channel sends and reads with aiogram's description of the Bot API.

aiogram is generated from Telegram's documentation. The channel itself does not use it.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from pydantic import BaseModel, ValidationError

from channels.telegram import api as our_calls
from channels.telegram import payloads
from channels.telegram.api import BotApi, OutgoingText
from channels.telegram.payloads import parse_update
from channels.telegram.wire import ChatTarget, keyboard
from config import Secret
from gateway.contract import Button, Enclosure
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi, Json
from tests.channels.telegram.generated_updates import updates

TARGET = ChatTarget(chat=-1001, thread=7)
TEXT = OutgoingText(
    text="<b>hi</b>", is_html=True, reply_to=9, keyboard=keyboard([Button(label="Stop", command="/stop")])
)


@pytest.fixture(scope="module")
def aiogram() -> ModuleType:
    import aiogram  # noqa: PLC0415 - it takes seconds, and each test process collects this module

    return aiogram


async def call_everything(bot: BotApi, folder: Path) -> None:
    await bot.get_me()
    await bot.set_menu({"new": "Start"}, chat=42)
    await bot.set_group_menu({"new": "Start"})
    await bot.delete_menu(42)
    await bot.get_updates(5, wait=0, slack=5)
    await bot.acknowledge(5)
    await bot.send_text(TARGET, TEXT)
    await bot.edit_text(-1001, 5, TEXT)
    await bot.show_draft(TARGET, 3, TEXT)
    await bot.show_typing(TARGET)
    await bot.set_reaction(TARGET, 5, "👀")
    await bot.answer_button("q1", "Done")
    for name, media_type in (
        ("a.png", "image/png"),
        ("a.ogg", "audio/ogg"),
        ("a.mp3", "audio/mpeg"),
        ("a.pdf", "application/pdf"),
    ):
        file = Enclosure(name=name, media_type=media_type, size=1, ref="x")
        path = folder / name
        path.write_bytes(b"x")
        await bot.send_file(TARGET, file, path, caption="look", reply_to=9)
    assert [chunk async for chunk in bot.stream_file("F1")] == [b"x"]
    await bot.set_webhook("https://bot.example.org", Secret("secret"))
    await bot.get_webhook_info()
    await bot.delete_webhook()


def called_methods() -> set[str]:
    """Return the names of the methods that the source of the channel calls."""
    calls = [node for node in ast.walk(ast.parse(Path(our_calls.__file__).read_text())) if isinstance(node, ast.Call)]
    names = [node.args[0] for node in calls if ast.unparse(node.func) in {"self._client.call", "self._client.upload"}]
    return {name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)}


async def test_every_call_is_a_method_of_the_bot_api_with_its_fields(
    api: FakeBotApi, aiogram: ModuleType, tmp_path: Path
) -> None:
    api.files["F1"] = b"x"
    async with BotApi(Secret(TOKEN), api.url) as bot:
        await call_everything(bot, tmp_path)
    # The names of these are put together from the kind of a file.
    assert {call.method for call in api.calls} == called_methods() | {"sendPhoto", "sendVoice", "sendAudio"}
    for call in api.calls:
        model = getattr(aiogram.methods, call.method[0].upper() + call.method[1:])
        assert set(call.fields) <= set(model.model_fields), call.method
        structured = {name: json.loads(value) for name, value in call.fields.items() if value[0] in "[{"}
        assert model.model_validate({**call.fields, **structured}), call.method


def nested(annotation: object, base: type) -> Iterator[type]:
    """Yield the classes derived from `base` in a type such as `list[Location] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, base):
        yield annotation
    for part in get_args(annotation):
        yield from nested(part, base)


def test_every_field_that_is_read_exists_in_the_bot_api(aiogram: ModuleType) -> None:
    types = aiogram.types
    theirs: defaultdict[type, set[type[BaseModel]]] = defaultdict(set)
    left: list[tuple[type, type[BaseModel]]] = [
        (payloads.Update, types.Update),
        (payloads.WebhookInfo, types.WebhookInfo),
        (payloads.StoredFile, types.File),
        (payloads.SentMessage, types.Message),
        (payloads.User, types.User),
    ]
    while left:
        ours, model = left.pop()
        if model in theirs[ours]:
            continue
        theirs[ours].add(model)
        by_name = {field.alias or name: field for name, field in model.model_fields.items()}
        for field in msgspec.structs.fields(ours):
            inner = list(nested(field.type, msgspec.Struct))
            if inner and field.encode_name in by_name:
                left += [(inner[0], each) for each in nested(by_name[field.encode_name].annotation, BaseModel)]
    assert {payloads.Message, payloads.File, payloads.MessageOrigin, payloads.PollOption} <= set(theirs)
    for ours, models in theirs.items():
        known = {field.alias or name for model in models for name, field in model.model_fields.items()}
        assert {field.encode_name for field in msgspec.structs.fields(ours)} <= known, ours


@given(raw=updates)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_update_that_aiogram_can_parse_is_parsed(raw: Json, aiogram: ModuleType) -> None:
    try:
        expected: Any = aiogram.types.Update.model_validate(raw)  # `Any`: the module is loaded by the fixture.
    except ValidationError:
        return
    received = parse_update(json.dumps(raw))
    assert received is not None
    assert received.update is not None
    assert (received.id, received.update.update_id) == (expected.update_id, expected.update_id)
    if expected.message is not None and received.update.message is not None:
        assert received.update.message.date == expected.message.date.timestamp()
        assert received.update.message.text == expected.message.text
