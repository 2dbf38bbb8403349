"""`gatehouse token`: creates, lists and revokes the API tokens of programs."""

import argparse
import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from config import Settings
from gateway.access.rules import Live
from gateway.access.tokens import TOKEN_FACTS, TokenBook, TokenIssuer
from gateway.admin.client import ControlClient, is_running
from gateway.admin.token_routes import change_tokens, describe_tokens
from gateway.cli.common import EXIT_OK, SettingsParser, command_parser, load_settings, log_to_stderr
from gateway.contract import TokenScope
from gateway.conversation import Json
from gateway.data_dir import DataDirLock, prepare_data_dir, require_complete_restore
from gateway.spool import GRANT_FACTS
from gateway.storage import open_storage
from gateway.text import draw_table, printable
from gateway.text.plain import ago, local_time
from gateway.turns.grants import GrantBook

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_LIFETIME = re.compile(r"(\d{1,6})([mhdwy])", re.ASCII)


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _parser(config).parse_args(arguments)
    settings = load_settings(options.config, resolves=False).settings
    log_to_stderr()
    action = options.action or "list"
    fields = ("name", "scopes", "agent", "repo", "session", "role", "expires_in")
    names = {"create": fields, "revoke": ("id",)}.get(action, ())
    answer = asyncio.run(_ask(settings, action, {name: getattr(options, name) for name in names}))
    if options.json:
        print(json.dumps(answer, indent=2))
        return EXIT_OK
    match answer:
        case {"created": {"id": id_, "name": name, "scopes": [*scopes]}, "secret": secret}:
            print(printable(f"Created the token {name} ({id_}), with the scopes {', '.join(map(str, scopes))}."))
            print("This is its secret. It can't be shown again:\n")
            print(secret)
        case {"revoked": {"id": id_, "name": name}}:
            print(printable(f"Revoked the token {name} ({id_})."))
        case {"tokens": [*tokens]}:
            print(printable(_table(tokens)))
    return EXIT_OK


def _parser(config: Path | None) -> SettingsParser:
    parser = command_parser("token", "Create, list and revoke the API tokens of programs.", config)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    create = actions.add_parser("create", help="create a token, and print its secret once")
    create.add_argument("name", help="a name that says which program uses the token")
    create.add_argument(
        "--scope",
        dest="scopes",
        action="extend",
        required=True,
        type=_scopes,
        metavar="SCOPES",
        help=f"what the program may do, separated by commas or with several options: {', '.join(TokenScope)}",
    )
    create.add_argument("--agent", help="the only agent that the program may use")
    create.add_argument("--repo", help="the only repository that the program may use")
    create.add_argument("--role", help="the role of the program: a table in [roles]; without this, member")
    create.add_argument("--session", help="the session that requests belong to if they name no other")
    create.add_argument(
        "--expires",
        dest="expires_in",
        type=_lifetime,
        metavar="TIME",
        help="how long the token is valid, such as 12h, 30d or 1y; without this, until it is revoked",
    )
    actions.add_parser("list", help="list all tokens (default)")
    revoke = actions.add_parser("revoke", help="make a token invalid at once")
    revoke.add_argument("id", metavar="ID", help="the id that the list shows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    for each in actions.choices.values():
        each.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    return parser


def _scopes(text: str) -> list[str]:
    scopes = [scope.strip() for scope in text.split(",") if scope.strip()]
    if not scopes or not set(scopes) <= set(TokenScope):
        raise argparse.ArgumentTypeError(f"the scopes are {', '.join(TokenScope)}; separate them by commas")
    return scopes


def _lifetime(text: str) -> float:
    found = _LIFETIME.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not a time such as 90m, 12h, 30d, 2w or 1y")
    return float(int(found[1]) * _UNITS[found[2]])


async def list_tokens(settings: Settings) -> list[dict[str, Json]]:
    """Return all tokens, without their secrets. Raises `Refused` or `CannotStart` as the command does."""
    listed = (await _ask(settings, "list", {}))["tokens"]
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


async def _ask(settings: Settings, action: str, wanted: dict[str, Json]) -> dict[str, Json]:
    """Ask the running daemon. If none runs, use its spool under its lock."""
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            if action == "list":
                return await control.get("/tokens")
            return await control.post(f"/tokens/{action}", wanted)
    prepare_data_dir(directory)
    with DataDirLock(directory):
        require_complete_restore(directory)
        async with open_storage(settings) as (spool, _):
            now = partial(datetime.now, UTC)
            book = TokenBook(now)
            book.read(await spool.facts(TOKEN_FACTS))
            grants = GrantBook(Live(settings, token_book=book), now=now)
            grants.read(await spool.facts(GRANT_FACTS))
            issuer = TokenIssuer(book, spool, settings=lambda: settings, now=now, also_ends=grants.remove_people)
            if action == "list":
                return describe_tokens(issuer)
            return await change_tokens(issuer, action, wanted)


def _table(tokens: Sequence[Json]) -> str:
    if not tokens:
        return "There are no API tokens. `gatehouse token create NAME --scope read,prompt` creates one."
    now = datetime.now(UTC)
    rows = [("id", "name", "scopes", "role", "only", "expires", "last used")]
    for token in tokens:
        assert isinstance(token, dict)  # noqa: S101 - for mypy; `describe_tokens` makes them.
        scopes, used, expires = token["scopes"], token["last_used_at"], token["expires_at"]
        bound = [f"{kind} {token[kind]}" for kind in ("agent", "repo", "session") if token[kind]]
        until = local_time(datetime.fromisoformat(str(expires))) if expires else "never"
        rows.append(
            (
                str(token["id"]),
                str(token["name"]),
                ", ".join(map(str, scopes)) if isinstance(scopes, list) else "",
                str(token["role"]),
                ", ".join(bound) or "-",
                f"{until} (expired)" if token["is_expired"] else until,
                ago(datetime.fromisoformat(str(used)), now) if used else "never",
            )
        )
    return draw_table(rows)
