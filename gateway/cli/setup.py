"""`gatehouse setup`: sets up a model, bots and the service, from questions in the terminal or from options."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from getpass import getpass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from config import ChannelSettings, LogFormat, LogLevel, ProviderSettings, Secret, Settings, destination
from config.secrets import LoadContext, is_reference, resolve
from gateway.adapters.registry import ENTRY_POINT_GROUP
from gateway.admin.client import ControlClient, is_running
from gateway.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, command_parser, fail
from gateway.cli.service import install
from gateway.doctor.configuration import open_channels
from gateway.doctor.finding import Finding, Level
from gateway.doctor.peers import DEADLINE, check_channel, check_model
from gateway.errors import CannotStart, Refused
from gateway.install.installer import create_configuration
from gateway.install.setup import (
    PRESETS,
    CurrentSetup,
    SetupPlan,
    credentials_drop_in,
    default_base_url,
    default_model,
    list_ollama_models,
    ollama_url,
    service_environment,
)
from gateway.install.units import ServiceScope, service_paths
from gateway.observability.logging import configure

_PAIRING = "It replies with a code. Run `gatehouse pair approve CODE --owner` to become its owner."


class Prompter(Protocol):
    """Asks a person. Raises `EOFError` when the input ends."""

    def say(self, text: str) -> None: ...

    def ask(self, question: str, default: str = "") -> str: ...

    def ask_secret(self, question: str) -> str:
        """Ask without showing the typed characters."""


class TerminalPrompter:
    def say(self, text: str) -> None:
        print(text)

    def ask(self, question: str, default: str = "") -> str:
        return input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default

    def ask_secret(self, question: str) -> str:
        return getpass(f"{question}: ").strip()


def main(arguments: Sequence[str], *, config: Path | None, prompter: Prompter | None = None) -> int:
    description = "Set up a model, a bot and the service. Without options, setup asks step by step."
    parser = command_parser("setup", description, config)
    parser.add_argument("--provider", choices=sorted(PRESETS), help="model provider; `custom` needs --base-url")
    parser.add_argument("--model", metavar="NAME", help="name of the model at the provider")
    parser.add_argument("--base-url", metavar="URL", help='endpoint of the provider; "" resets it to the default')
    parser.add_argument("--key", metavar="REFERENCE", help="the provider's API key, as env:NAME or file:PATH")
    parser.add_argument(
        "--token",
        metavar="CHANNEL=REFERENCE",
        action="append",
        default=[],
        help="a bot's token, as env:NAME or file:PATH",
    )
    parser.add_argument(
        "--owner", metavar="CHANNEL:ID", action="append", default=[], help="the owner's ID on a channel"
    )
    parser.add_argument("--service", choices=("user", "system", "none"), help="install as a service (default: none)")
    parser.add_argument("--no-test", action="store_true", help="write the settings without testing them")
    options = parser.parse_args(arguments)
    configure(LogLevel.ERROR, LogFormat.CONSOLE, [], None)  # The tests of model and bot print their own results.
    path = destination(options.config, os.environ, Path.cwd(), Path.home())
    try:
        if not (options.provider or options.token or options.owner or options.service):
            if prompter is None:
                if not (sys.stdin and sys.stdin.isatty()):
                    hint = "Use the options listed by `gatehouse setup --help`."
                    return fail(f"No terminal, so setup can't prompt. {hint}", EXIT_USAGE)
                prompter = TerminalPrompter()
            _ask_all(options, prompter, CurrentSetup.read(path))
    except EOFError:
        return fail("Nothing was changed.", EXIT_FAILED)
    paths = service_paths(ServiceScope.SYSTEM if options.service == "system" else ServiceScope.USER, Path.home())
    if options.service == "system":
        # The system service reads its own configuration, not that of the administrator who runs this command.
        if os.geteuid() != 0:
            raise Refused("Only root can set up the system service. Use sudo, or --service user for your own service.")
        path = paths.config
        plan = asyncio.run(_plan(options, path, service_environment(paths, os.environ))).with_credentials()
        create_configuration(paths)
    else:
        plan = asyncio.run(_plan(options, path, os.environ))
    if plan.values:
        plan.write(path, os.environ)  # Everything has been tested by now.
        print(f"Wrote {', '.join([str(path), *plan.secrets])}.")
    if options.service == "system":
        credentials = credentials_drop_in(paths, plan.secrets) if plan.secrets else ""
        install(paths, credentials=credentials, restart=bool(plan.values))
    elif options.service == "user":
        install(paths)
    return asyncio.run(_apply(options, CurrentSetup.read(path).settings.gateway.data_dir, prompter))


async def _apply(options: argparse.Namespace, directory: Path, prompter: Prompter | None) -> int:
    """Reload a running gateway and pair its owner. If none runs, print the next step."""
    needs_owner = options.token and not options.owner
    if not await asyncio.to_thread(is_running, directory):
        print("Start the gateway with `gatehouse run`.")
        if needs_owner:
            print(f"Then write to your bot. {_PAIRING}")
        return EXIT_OK
    async with ControlClient(directory) as control:
        await control.post("/reload")
        print("The running gateway has reloaded its configuration.")
        if needs_owner and prompter is None:
            print(f"Write to your bot. {_PAIRING}")
        elif needs_owner and prompter is not None:
            question = "Write to your bot, and enter the code it replies with (leave empty to do this later)"
            while True:
                try:
                    code = await asyncio.to_thread(prompter.ask, question)
                except EOFError:
                    return fail(
                        "No owner yet. To become the owner, run `gatehouse pair approve CODE --owner`.", EXIT_FAILED
                    )
                if not code:
                    break
                try:
                    await control.post("/pair/approve", {"code": code, "is_owner": True})
                except Refused as error:
                    prompter.say(str(error))
                else:
                    prompter.say("You are now the owner of this bot. Write to it again.")
                    break
    return EXIT_OK


async def _plan(options: argparse.Namespace, path: Path, environ: Mapping[str, str]) -> SetupPlan:
    """Test each choice and return the plan to write. Raises `Refused` for the first choice that does not work."""
    plan = SetupPlan()
    current = CurrentSetup.read(path)
    if options.provider:
        await _plan_model(plan, options, current, path, environ)
    for given in options.token:
        channel, _, text = given.partition("=")
        if channel not in (known := bot_channels()) or not text:
            raise Refused(f"--token takes CHANNEL=REFERENCE. Channels with a token: {', '.join(known)}.")
        token, reference = _secret(text, path, environ)
        if not options.no_test:
            settings = current.settings.channels.get(channel, ChannelSettings())
            # Without its other accounts, which have their own tokens.
            settings = settings.model_copy(update={"token": token, "enabled": True, "accounts": {}})
            try:
                channels = open_channels(Settings.model_construct(channels={channel: settings}))
            except CannotStart as error:
                raise Refused(f"{error} Nothing was written.") from error
            _require_ok(await check_channel(channels[channel, "default"], DEADLINE))
        plan.add_token(channel, token, reference)
    if options.owner:
        owners = current.settings.gateway.owners
        plan.values["gateway.owners"] = [*owners, *(each for each in options.owner if each not in owners)]
    return plan


async def _plan_model(
    plan: SetupPlan, options: argparse.Namespace, current: CurrentSetup, path: Path, environ: Mapping[str, str]
) -> None:
    name, preset = options.provider, PRESETS[options.provider]
    given = options.base_url if options.base_url is not None else current.base_url(name)
    # An empty --base-url resets the endpoint to the provider's own.
    base_url = (given if given is not None else default_base_url(name, os.environ)) or None
    secret = options.key or current.key(name, base_url)
    key, reference = _secret(secret, path, environ) if secret else (None, None)
    model = options.model or current.model(name) or await default_model(name, base_url)
    if name == "custom" and not base_url:
        raise Refused("A custom endpoint needs --base-url.")
    if name != "offline" and not model:
        raise Refused("No model was chosen. Add --model NAME.")
    if preset.needs_key and key is None:
        raise Refused(f"{name} needs a key. Add --key env:NAME or --key file:PATH.")
    provider = ProviderSettings(kind=preset.kind, base_url=base_url, api_key=key)
    if not options.no_test:
        _require_ok(await check_model(name, provider, model or None, DEADLINE))
    plan.add_model(name, provider, model, reference)


def _require_ok(finding: Finding) -> None:
    if finding.level is not Level.OK:
        raise Refused(f"{finding.message} {finding.fix} Nothing was written.")
    print(finding.message)


def _secret(text: str, path: Path, environ: Mapping[str, str]) -> tuple[Secret, str | None]:
    """Return the secret, and the reference to write to the configuration; None if the secret needs a file.

    A system service (`environ` has a credentials directory) cannot read the variables and files of this shell, so
    their contents are stored as credentials.
    """
    if not is_reference(text):
        return Secret(text), None
    is_own = text.startswith("credential:") or "CREDENTIALS_DIRECTORY" not in environ
    try:
        return resolve(text, LoadContext(environ=environ, folder=path.absolute().parent)), text if is_own else None
    except ValueError as error:
        raise Refused(f"{error}.") from error


def bot_channels() -> dict[str, str]:
    """Return the channels that need a token, each with its own instructions for getting one."""
    instructions: dict[str, str] = {}
    for name in sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP)):
        try:
            open_channels(Settings.model_construct(channels={name: ChannelSettings()}))
        except CannotStart as error:
            instructions[name] = str(error)
    return instructions


def _ask_all(options: argparse.Namespace, prompter: Prompter, current: CurrentSetup) -> None:
    """Ask for all options. An empty answer takes the default in brackets, or keeps the present setting."""
    ollama = ollama_url(os.environ)
    models = asyncio.run(list_ollama_models(ollama))
    if models:
        prompter.say(f"Ollama is running on this machine with {', '.join(models)}.")
    # Suggest the provider in use, or else one that costs nothing.
    default = "ollama" if models else "offline"
    if current.provider in PRESETS and current.provider != "offline":
        default = current.provider
    provider = options.provider = _choose(prompter, "Which model provider?", list(PRESETS), default)
    if provider == "custom":
        present = current.base_url("custom") or ""
        options.base_url = prompter.ask("URL of the endpoint, like http://127.0.0.1:8000/v1", present)
    if provider == "ollama" and models:
        options.base_url = f"{ollama}/v1"
    if provider != "offline":
        suggested = models[0] if provider == "ollama" and models else PRESETS[provider].model
        options.model = prompter.ask("Which model?", current.model(provider) or suggested)
    if PRESETS[provider].needs_key or provider == "custom":
        url = options.base_url or current.base_url(provider) or default_base_url(provider, os.environ)
        keep = "; leave empty to keep the current one" if current.key(provider, url) else ""
        options.key = prompter.ask_secret(f"API key (hidden; or env:NAME, file:PATH{keep})") or None
    for channel, instructions in bot_channels().items():
        # The first sentence says that the token is missing. Only the instructions after it are of interest here.
        prompter.say(instructions.partition(". ")[2] or instructions)
        empty = "keep the current one" if current.has_token(channel) else "skip"
        if token := prompter.ask_secret(f"Token of your {channel} bot (hidden; leave empty to {empty})"):
            options.token.append(f"{channel}={token}")
    options.service = _choose(prompter, "Install as a service?", ["none", "user", "system"], "none")


def _choose(prompter: Prompter, question: str, words: list[str], default: str) -> str:
    while True:
        answer = prompter.ask(f"{question} ({', '.join(words)})", default).lower()
        if answer in words:
            return answer
        prompter.say(f"Please choose one of: {', '.join(words)}.")
