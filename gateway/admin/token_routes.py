"""Control routes for API tokens, and what they do: the command line does the same while no daemon runs."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from gateway.access.tokens import ApiToken, NewToken, TokenIssuer
from gateway.admin.session_routes import required_text
from gateway.contract import Access, Caller, Route, TokenScope
from gateway.conversation import Json
from gateway.errors import Refused

TOKEN_ACTIONS = ("create", "revoke")


def token_routes(issuer: TokenIssuer) -> list[Route]:
    async def show(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(describe_tokens(issuer))

    async def change(request: web.Request, _: Caller) -> web.StreamResponse:
        action = request.path.rpartition("/")[2]
        return web.json_response(await change_tokens(issuer, action, await request.json()))

    return [
        Route(method="GET", path="/tokens", access=Access.CONTROL, handle=show),
        *(
            Route(method="POST", path=f"/tokens/{action}", access=Access.CONTROL, handle=change)
            for action in TOKEN_ACTIONS
        ),
    ]


def describe_tokens(issuer: TokenIssuer) -> dict[str, Json]:
    expired = issuer.book.expired()
    tokens = sorted(issuer.book.tokens.values(), key=lambda token: token.created_at)
    return {"tokens": [_describe(token, is_expired=token.id in expired) for token in tokens]}


async def change_tokens(issuer: TokenIssuer, action: str, wanted: Mapping[str, Json]) -> dict[str, Json]:
    """Create a token and return its secret, or revoke one. Raises `Refused`."""
    if action == "revoke":
        return {"revoked": _describe(await issuer.revoke(required_text(wanted, "id")))}
    try:
        new = msgspec.convert(wanted, NewToken)
    except msgspec.ValidationError as error:
        raise Refused(f"This is not a valid token: {error}. The scopes are {', '.join(TokenScope)}.") from error
    token, secret = await issuer.create(new)
    return {"created": _describe(token), "secret": secret}


def _describe(token: ApiToken, *, is_expired: bool = False) -> dict[str, Json]:
    """Return everything but the digest."""
    return {
        "id": token.id,
        "name": token.name,
        "scopes": [scope.value for scope in TokenScope if scope in token.scopes],
        "agent": token.agent,
        "repo": token.repo,
        "session": token.session,
        "role": token.shown_role,
        "created_at": token.created_at.isoformat(),
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
        "last_used_at": token.last_used_at.isoformat() if token.last_used_at else None,
        "is_expired": is_expired,
    }
