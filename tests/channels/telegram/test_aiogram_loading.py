"""aiogram as the daemon loads it, in its own process, where no other test has built models before."""

import ast
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from aiogram.methods import Response
from aiogram.types import Message, Update

from channels import telegram

PROBE = """
import json
from channels.telegram.aiogram_loading import load_aiogram

load_aiogram()

from aiogram import methods, types
from aiogram.methods import Response
from channels.telegram.aiogram_loading import build_models

def built(module):
    return [name for name in module.__all__ if getattr(getattr(module, name), "__pydantic_complete__", False)]

answers = build_models()
before = {"methods": built(methods), "types": built(types)}
location = {"location": {"latitude": 1.5, "longitude": 2.5}, "address": "Here"}
methods.SetBusinessAccountGiftSettings(
    business_connection_id="1", show_gift_button=True,
    accepted_gift_types=types.AcceptedGiftTypes(
        unlimited_gifts=True, limited_gifts=True, unique_gifts=True, premium_subscription=True, gifts_from_channels=True
    ),
)
answer = Response[types.BusinessLocation].model_validate_json(json.dumps({"ok": True, "result": location}))
print(json.dumps({**before, "answers": len(answers), "latitude": answer.result.location.latitude}))
"""


@pytest.fixture(scope="module")
def probed() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def called_methods() -> set[str]:
    """Return aiogram's class names of the methods that the channel calls."""
    trees = [ast.parse(file.read_text()) for file in Path(telegram.__path__[0]).glob("*.py")]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        call.attr.title().replace("_", "")
        for call in calls
        if isinstance(call, ast.Attribute) and ast.unparse(call.value) == "self._bot"
    }


def test_the_models_of_all_called_methods_are_built_in_advance(probed: dict[str, Any]) -> None:
    assert {"GetUpdates", "SendMessage", "GetFile"} <= called_methods() <= set(probed["methods"])
    assert probed["answers"] == len(called_methods())


def test_unused_models_are_not_built(probed: dict[str, Any]) -> None:
    assert {"Update", "Message"} <= set(probed["types"])
    assert not {"BusinessLocation", "ChatFullInfo", "Sticker"} & set(probed["types"])
    assert "SendPoll" not in probed["methods"]


def test_a_model_that_was_not_built_in_advance_is_built_on_first_use(probed: dict[str, Any]) -> None:
    assert probed["latitude"] == 1.5


@pytest.mark.usefixtures("channel")
def test_response_models_are_built_once() -> None:
    """Building them again would block the event loop for tens of milliseconds."""
    models: list[type[object]] = [
        Response[list[Update]],
        Response[Message],
        Response[Message | bool],
        Response[bool],
    ]
    built = [ref(model) for model in models]
    models.clear()
    gc.collect()
    assert all(model() is not None for model in built)
