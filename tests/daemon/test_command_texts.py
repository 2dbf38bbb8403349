"""The answers to commands are plain text: every channel shows them as they are, so Markdown would appear raw."""

import re
from pathlib import Path

import pytest

from gateway.access.pairing import UNKNOWN_CODE
from gateway.commands.registry import COMMANDS, RETRY
from gateway.contract import OutboundKind, Sender
from gateway.text.plain import without_code
from tests.daemon.harness import gateway, say_and_hear, settings

MARKDOWN = re.compile(r"`|\*\*|^#+ |\]\(", re.MULTILINE)
QUOTES_MARKDOWN = {"session export", "history"}
"""These show the conversation, which is written in Markdown."""
ARGUMENTS = {
    "<number>": "1",
    "[number]": "1",
    "<words>": "hello",
    "<title>": "A title",
    "[number] <title>": "1 A title",
}


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.name not in {*QUOTES_MARKDOWN, "restart"}])
async def test_no_command_answers_with_raw_markdown(tmp_path: Path, command: object) -> None:
    spec = next(each for each in COMMANDS if each is command)
    arguments = {"", ARGUMENTS.get(spec.arguments, spec.arguments), "unknown"}
    async with gateway(settings(tmp_path)) as (_, chat):
        await say_and_hear(chat, "remind me every day at 9:00 to stretch")
        for argument in sorted(arguments):
            answer = await say_and_hear(chat, f"/{spec.name} {argument}".strip())
            if answer.kind is OutboundKind.NOTICE:
                assert not MARKDOWN.search(answer.text), answer.text
            assert answer.kind is OutboundKind.NOTICE or spec is RETRY


async def test_the_invitation_of_a_stranger_is_plain_text(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        invited = await say_and_hear(chat, "hello", sender=Sender(id="eve", name="Eve"))
    assert "gatehouse pair approve" in invited.text
    assert not MARKDOWN.search(invited.text + UNKNOWN_CODE)


def test_the_code_marks_of_a_quoted_sentence_are_removed() -> None:
    assert without_code("`gpt-5` can't be reached. Try `/model x`.") == "gpt-5 can't be reached. Try /model x."
