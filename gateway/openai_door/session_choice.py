"""Session choice: which agent a request is for, and which session it belongs to, if any."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from uuid import UUID

from msgspec import Struct

from config.types import OPENAI_CHANNEL
from gateway.access.rules import Live
from gateway.api.programs import OWNER, role_of_caller
from gateway.contract import Caller
from gateway.http.responses import HttpError
from gateway.openai_door.errors import refusal
from gateway.openai_door.types import ChatRequest, ConversationRef, ResponseRequest
from gateway.routing import Routed, program_scope
from gateway.text import excerpt, printable
from gateway.turns.agents import AgentRegistry

SESSION_HEADER = "X-Gatehouse-Session"
MAX_NAME = 200
SHOWN_NAME = 80
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{32})")


class StoredResponse(Struct, frozen=True, kw_only=True):
    """What the id of a stored response says. `name` is that of its `StreamedAnswer`."""

    id: str
    session_id: str
    name: str

    @classmethod
    def parse(cls, response_id: str) -> "StoredResponse | None":
        """Return None for an id that is not that of a stored response."""
        found = _RESPONSE_ID.fullmatch(response_id)
        return None if found is None else cls(id=response_id, session_id=str(UUID(found[1])), name=found[2])


class SessionChoice(Struct, frozen=True, kw_only=True):
    """The agent and the session of a request. A stateless request has neither `name` nor `after`."""

    agent: str
    name: str = ""
    """The name of the session, which belongs to the token, or the id of a session."""
    param: str = ""
    """The field of the request that has the name."""
    after: StoredResponse | None = None
    """The response that the request continues."""

    @property
    def is_stateless(self) -> bool:
        return not self.name and self.after is None


def scope_of(caller: Caller, agent: str, name: str = "") -> Routed:
    """Return the scope of a named session. It belongs to the token, so that two programs never meet in one session.

    Without a name, return the scope of the program's stateless requests.
    """
    program = caller.token or OWNER
    return program_scope(agent, OPENAI_CHANNEL, f"{program}/{name}" if name else program)


class SessionChooser:
    """Agents appear as models. A token that is bound to an agent sees only that one."""

    def __init__(self, live: Live, agents: AgentRegistry) -> None:
        self._live = live
        self._agents = agents

    def models(self, caller: Caller) -> list[str]:
        """Return the models that a program may use."""
        token = self._live.token_book.find(caller.token)
        bound = token.agent if token is not None else None
        role = role_of_caller(self._live, caller)
        return [agent.name for agent in self._agents if bound in (None, agent.name) and role.is_answered_by(agent.name)]

    def split_model(self, caller: Caller, model: str) -> tuple[str, str]:
        """Return the agent and the name of the session in `main@trip-to-lisbon`. Raises a 404 for an unknown agent."""
        agent, _, suffix = model.partition("@")
        if agent not in (known := self.models(caller)):
            shown = excerpt(printable(agent), SHOWN_NAME)
            raise refusal(
                f"The model `{shown}` does not exist, or this token may not use it. There are: {', '.join(known)}.",
                param="model",
                code="model_not_found",
                status=HTTPStatus.NOT_FOUND,
            )
        if model.endswith("@"):
            raise refusal("The name of the session after the `@` is missing.", param="model")
        return agent, suffix

    def choose(self, caller: Caller, headers: Mapping[str, str], body: ChatRequest | ResponseRequest) -> SessionChoice:
        """Return the first session that the request names, or that its token has. Raises `HttpError`."""
        agent, suffix = self.split_model(caller, body.model)
        conversation, previous = "", None
        if isinstance(body, ResponseRequest):
            asked = body.conversation
            conversation = asked.id if isinstance(asked, ConversationRef) else asked or ""
            previous = body.previous_response_id
        if previous and conversation:
            raise refusal("Give either `conversation` or `previous_response_id`, not both.", param="conversation")
        if previous:
            after = StoredResponse.parse(previous)
            if after is None:
                raise not_found(StoredResponse(id=previous, session_id="", name=""))
            return SessionChoice(agent=agent, after=after, param="previous_response_id")
        token = self._live.token_book.find(caller.token)
        candidates = {
            "conversation": conversation,
            SESSION_HEADER: headers.get(SESSION_HEADER, ""),
            "model": suffix,
            "prompt_cache_key": body.prompt_cache_key,
            "safety_identifier": body.safety_identifier,
            "user": body.user,
            "token": token.session if token is not None else None,
        }
        param, name = next(((param, name) for param, name in candidates.items() if name), ("", ""))
        if len(name) > MAX_NAME or not name.isprintable():
            raise refusal(f"The name of a session has at most {MAX_NAME} characters, all printable.", param=param)
        return SessionChoice(agent=agent, name=name, param=param)


def not_found(response: StoredResponse) -> HttpError:
    """Return the error for a response that a request continues, and that does not exist or is not visible."""
    return refusal(
        f"Previous response with id '{excerpt(printable(response.id), SHOWN_NAME)}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
