"""aiogram as the daemon loads it, in a process of its own: whatever a test has built before is built."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def asked_for() -> set[str]:
    """Name the methods that the channel calls, as aiogram names their classes."""
    trees = [ast.parse(file.read_text()) for file in Path(telegram.__path__[0]).glob("*.py")]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        call.attr.title().replace("_", "")
        for call in calls
        if isinstance(call, ast.Attribute) and ast.unparse(call.value) == "self._bot"
    }


def test_what_the_channel_calls_is_built_before_it_is_called(found: dict[str, Any]) -> None:
    assert {"GetUpdates", "SendMessage", "GetFile"} <= asked_for() <= set(found["methods"])
    assert found["answers"] == len(asked_for())


def test_what_nobody_has_used_is_not_built(found: dict[str, Any]) -> None:
    assert {"Update", "Message"} <= set(found["types"])
    assert not {"BusinessLocation", "ChatFullInfo", "Sticker"} & set(found["types"])
    assert "SendPoll" not in found["methods"]


def test_what_is_used_all_the_same_is_built_then(found: dict[str, Any]) -> None:
    assert found["latitude"] == 1.5
