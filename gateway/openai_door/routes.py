"""The routes of the OpenAI-compatible door, and those that list agents as models."""

from aiohttp import web

from gateway.api.operation import json_response
from gateway.api.program_sessions import ProgramSessions
from gateway.contract import Access, Caller, Route, TokenScope
from gateway.openai_door.chat_completions import ChatCompletions
from gateway.openai_door.door import Door
from gateway.openai_door.responses import Responses
from gateway.openai_door.types import ModelList, ModelObject
from gateway.sessions import SessionManager


def door_routes(door: Door, sessions: SessionManager, programs: ProgramSessions, *, created: int) -> list[Route]:
    """Return all routes. `created` is when the models were created, for which the start of the gateway has to do."""
    chat_completions, responses, chooser = ChatCompletions(door), Responses(door, sessions, programs), door.chooser

    async def list_models(_: web.Request, caller: Caller) -> web.StreamResponse:
        return json_response(ModelList(data=[ModelObject(id=name, created=created) for name in chooser.models(caller)]))

    async def get_model(request: web.Request, caller: Caller) -> web.StreamResponse:
        model = request.match_info["id"]
        chooser.split_model(caller, model)
        return json_response(ModelObject(id=model, created=created))

    api, prompt = Access.API, TokenScope.PROMPT
    stored = "/v1/responses/{id}"
    return [
        Route(method="GET", path="/v1/models", access=api, handle=list_models),
        Route(method="GET", path="/v1/models/{id}", access=api, handle=get_model),
        # The answer takes as long as the model. A client that leaves ends the request, but not the turn of a session.
        Route(
            method="POST",
            path="/v1/chat/completions",
            access=api,
            scope=prompt,
            handle=chat_completions.create,
            is_stream=True,
            takes_key=True,
        ),
        Route(
            method="POST",
            path="/v1/responses",
            access=api,
            scope=prompt,
            handle=responses.create,
            is_stream=True,
            takes_key=True,
        ),
        Route(method="GET", path=stored, access=api, scope=prompt, handle=responses.get),
        Route(method="DELETE", path=stored, access=api, scope=prompt, handle=responses.delete),
        Route(method="GET", path=f"{stored}/input_items", access=api, scope=prompt, handle=responses.input_items),
    ]
