"""`gatehouse setup`: from nothing to a bot that answers; asked step by step, or told by options."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import (
    ChannelSettings,
    ConfigError,
    LogFormat,
    LogLevel,
    ProviderSettings,
    Secret,
    destination,
)
from config.secrets import LoadContext, is_reference, resolve
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, EXIT_USAGE, complain
from gateway.cli.service import install
from gateway.cli.setup_asking import Guide, Terminal, choose
from gateway.cli.usage import Parser, parser
from gateway.control import Control, NotRunning, is_running
from gateway.doctor.finding import Level
from gateway.errors import Refused
from gateway.installing import begin_configuration
from gateway.logs import configure
from gateway.service_units import Place, Scope, place
from gateway.setup.models import PRESETS, usual_model, usual_place
from gateway.setup.plan import Plan, bots, model_plan, token_plan, tried_model, tried_token
from gateway.setup.standing import Standing
from gateway.setup.system import credentials, drop_in, for_service

__all__ = ["main"]

PAIRING = "It answers with a code; `gatehouse pair approve CODE --owner` makes you its owner."


def main(arguments: Sequence[str], *, config: Path | None, guide: Guide | None = None) -> int:
    options = _parser(config).parse_args(arguments)
    configure(LogLevel.ERROR, LogFormat.CONSOLE, [], None)  # What is tried out tells its own tale.
    path = destination(options.config, os.environ, Path.cwd(), Path.home())
    try:
        if not _is_told(options):
            guide = guide or _terminal()
            options = choose(options, guide, Standing.at(path))
        if options.service == Scope.SYSTEM:
            return _set_up_system(options, place(Scope.SYSTEM, Path.home()), guide)
        return _set_up(options, path, guide)
    except ConfigError as mistakes:
        return complain(mistakes, EXIT_CONFIG)
    except (NotRunning, Refused) as refusal:
        return complain(refusal, EXIT_FAILED)
    except EOFError:
        return complain("Nothing was changed.", EXIT_FAILED)


def _parser(config: Path | None) -> Parser:
    made = parser("setup", "Set up a model, a bot and the service: asked, or told by these options.", config)
    made.add_argument("--provider", choices=sorted(PRESETS), help="where the model is; custom: with --base-url")
    made.add_argument("--model", metavar="NAME", help="the model's name there")
    made.add_argument("--base-url", metavar="URL", help='the endpoint, when it is not the provider\'s own; "": its own')
    made.add_argument("--key", metavar="REFERENCE", help="env:NAME or file:PATH of the provider's key")
    made.add_argument(
        "--token",
        metavar="CHANNEL=REFERENCE",
        action="append",
        default=[],
        help="env:NAME or file:PATH of a bot's token",
    )
    made.add_argument(
        "--owner", metavar="CHANNEL:ID", action="append", default=[], help="who the owner is on a channel"
    )
    made.add_argument("--service", choices=("user", "system", "none"), help="install it as a service (none)")
    made.add_argument("--no-test", action="store_true", help="write what is given without trying it out")
    return made


def _is_told(options: argparse.Namespace) -> bool:
    return bool(options.provider or options.token or options.owner or options.service)


def _terminal() -> Guide:
    if not (sys.stdin and sys.stdin.isatty()):
        raise SystemExit(
            complain("Nobody is there to be asked. Use the options that `gatehouse setup --help` lists.", EXIT_USAGE)
        )
    return Terminal()


def _set_up(options: argparse.Namespace, path: Path, guide: Guide | None) -> int:
    plan = asyncio.run(_tried(options, path, os.environ))
    if plan.values:
        _write(plan, path)
    if options.service == Scope.USER:
        install(place(Scope.USER, Path.home()))
    directory = Standing.at(path).settings.gateway.data_dir
    return asyncio.run(_put_in_force(options, directory, guide))


def _set_up_system(options: argparse.Namespace, where: Place, guide: Guide | None) -> int:
    """Set up what the machine's service reads, which is not what its administrator reads."""
    if os.geteuid() != 0:
        raise Refused("The machine's service is root's to set up. Use sudo, or --service user for one of your own.")
    plan = for_service(asyncio.run(_tried(options, where.config, credentials(where, os.environ))))
    begin_configuration(where)
    if plan.values:
        _write(plan, where.config)
    install(where, credentials=drop_in(where, plan.secrets) if plan.secrets else "", anew=bool(plan.values))
    directory = Standing.at(where.config).settings.gateway.data_dir
    return asyncio.run(_put_in_force(options, directory, guide))


def _write(plan: Plan, path: Path) -> None:
    plan.write(path, os.environ)
    print(f"Written: {', '.join([str(path), *plan.secrets])}.")


async def _put_in_force(options: argparse.Namespace, directory: Path, guide: Guide | None) -> int:
    """Let a gateway that runs already follow, and let its owner in; where none runs, say what comes next."""
    if not await asyncio.to_thread(is_running, directory):
        print("Start it with `gatehouse run`.")
        if options.token and not options.owner:
            print(f"Then write to your bot. {PAIRING}")
        return EXIT_OK
    async with Control(directory) as control:
        await control.post("/reload")
        print("The running gateway has read its configuration again.")
        if options.token and not options.owner:
            await _let_in(control, guide)
    return EXIT_OK


async def _let_in(control: Control, guide: Guide | None) -> None:
    if guide is None:
        print(f"Write to your bot. {PAIRING}")
        return
    question = "Write something to your bot. The code that it answers with (empty: later)"
    while code := await asyncio.to_thread(guide.ask, question):
        try:
            await control.post("/pair/approve", {"code": code, "is_owner": True})
        except Refused as refusal:
            guide.say(str(refusal))
        else:
            guide.say("You are its owner. Write again.")
            return


async def _tried(options: argparse.Namespace, path: Path, environ: Mapping[str, str]) -> Plan:
    """Make a plan of what was chosen, each part tried out; raise `Refused` with the first that does not work."""
    plan = Plan()
    if options.provider:
        plan.add(await _model(options, path, environ))
    for given in options.token:
        plan.add(await _token(given, path, environ, is_tested=not options.no_test))
    if options.owner:
        owners = Standing.at(path).settings.gateway.owners
        plan.values["gateway.owners"] = [*owners, *(each for each in options.owner if each not in owners)]
    return plan


async def _model(options: argparse.Namespace, path: Path, environ: Mapping[str, str]) -> Plan:
    name, preset = options.provider, PRESETS[options.provider]
    standing = Standing.at(path)
    given = options.base_url if options.base_url is not None else standing.base_url(name)
    base_url = (given if given is not None else usual_place(name, os.environ)) or None
    secret = options.key or standing.key(name, base_url)
    key, reference = _secret(secret, path, environ) if secret else (None, None)
    model = options.model or standing.model(name) or await usual_model(name, base_url)
    if name == "custom" and not base_url:
        raise Refused("A custom endpoint needs --base-url.")
    if name != "offline" and not model:
        raise Refused("Which model? Name it with --model.")
    if preset.needs_key and key is None:
        raise Refused(f"{name} needs a key: --key env:NAME or --key file:PATH.")
    provider = ProviderSettings(kind=preset.kind, base_url=base_url, api_key=key)
    if not options.no_test:
        finding = await tried_model(name, preset, provider, model)
        if finding.level is not Level.FINE:
            raise Refused(f"{finding.message} {finding.fix} Nothing was written.")
        print(finding.message)
    return model_plan(name, provider, model, reference)


async def _token(given: str, path: Path, environ: Mapping[str, str], *, is_tested: bool) -> Plan:
    channel, _, text = given.partition("=")
    if channel not in (known := bots()) or not text:
        raise Refused(f"--token takes CHANNEL=REFERENCE; channels with a token are: {', '.join(known)}.")
    token, reference = _secret(text, path, environ)
    settings = Standing.at(path).settings.channels.get(channel, ChannelSettings())
    settings = settings.model_copy(update={"token": token, "enabled": True, "accounts": {}})
    if is_tested:
        finding = await tried_token(channel, settings)
        if finding.level is not Level.FINE:
            raise Refused(f"{finding.message} {finding.fix} Nothing was written.")
        print(finding.message)
    return token_plan(channel, token, reference)


def _secret(text: str, path: Path, environ: Mapping[str, str]) -> tuple[Secret, str | None]:
    """Return the secret, and the reference to write in its place; what was typed has none, and gets a file.

    Where `environ` has credentials, those of a service, the files and variables of others are none of its own.
    """
    if not is_reference(text):
        return Secret(text), None
    is_own = text.startswith("credential:") or "CREDENTIALS_DIRECTORY" not in environ
    try:
        return resolve(text, LoadContext(environ=environ, folder=path.absolute().parent)), text if is_own else None
    except ValueError as mistake:
        raise Refused(f"{mistake}.") from mistake
