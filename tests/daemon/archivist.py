"""A model for tests of archiving: it answers chats, and notes what people have said."""

import json
from typing import Any

from gateway.extraction.request import SYSTEM
from tests.agent.wire.openai import OPENAI
from tests.agent.wire.server import Reply

Json = dict[str, Any]  # Any: JSON of any shape.

HELLO = OPENAI.answer("Hello.", tokens=(100, 10))


def statements(given: Json) -> str:
    """Return the answer of a good model: each message of a person is worth keeping."""
    return json.dumps(
        [{"seq": each["seq"], "text": each["text"]} for each in given["messages"] if each["from"] != "assistant"]
    )


class Archivist:
    """Chooses the replies of a `WireServer`. Requests of the archiver get `replies` first, and then good answers."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[Json] = []
        """What the archiver has asked about."""

    def choose(self, body: Json) -> Reply:
        system, *others = body["messages"]
        if system["content"] != SYSTEM:
            return HELLO
        given = json.loads(others[-1]["content"])
        self.asked.append(given)
        return self.replies.pop(0) if self.replies else OPENAI.answer(statements(given), tokens=(300, 20))
