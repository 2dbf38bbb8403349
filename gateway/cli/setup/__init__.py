"""`gatehouse setup`: sets up a model, bots and the service, from questions in the terminal or from options."""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import LogFormat, LogLevel, destination
from gateway.admin.client import ControlClient, is_running
from gateway.cli.common import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    command_parser,
    fail,
    print_error,
)
from gateway.cli.remote import request_reload
from gateway.cli.service import install
from gateway.cli.setup.choices import Choices, bot_channels
from gateway.cli.setup.questions import INTRODUCTION, Prompter, TerminalPrompter, ask_bots, ask_model, ask_service
from gateway.errors import Refused
from gateway.install.installer import create_configuration
from gateway.install.setup import PRESETS, CurrentSetup, credentials_drop_in, service_environment
from gateway.install.units import ServiceScope, service_paths
from gateway.observability.logging import configure


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
    if options.service == "system" and os.geteuid() != 0:
        raise Refused("Only root can set up the system service. Use sudo, or --service user for your own service.")
    is_interactive = not (options.provider or options.token or options.owner or options.service)
    if is_interactive and prompter is None:
        if not (sys.stdin and sys.stdin.isatty()):
            hint = "Use the options listed by `gatehouse setup --help`."
            return fail(f"No terminal, so setup can't prompt. {hint}", EXIT_USAGE)
        prompter = TerminalPrompter()
    try:
        if is_interactive and prompter is not None:
            prompter.say(INTRODUCTION)
            options.service = ask_service(prompter)
        paths = service_paths(ServiceScope.SYSTEM if options.service == "system" else ServiceScope.USER, Path.home())
        environ: Mapping[str, str] = os.environ
        if options.service == "system":
            # The system service reads its own configuration, not that of the administrator who runs this command.
            path = paths.config
            environ = service_environment(paths, os.environ)
        say = prompter.say if prompter is not None else print
        choices = Choices(path, environ, tests=not options.no_test, say=say)
        if is_interactive and prompter is not None:
            ask_model(prompter, choices)
            ask_bots(prompter, choices)
        else:
            asyncio.run(_take_options(choices, options))
    except Refused as refusal:
        raise Refused(f"{refusal} Nothing was written.") from refusal
    except (EOFError, KeyboardInterrupt) as end:
        print_error("")  # The cursor is still behind the question.
        return fail("Nothing was changed.", EXIT_FAILED if isinstance(end, EOFError) else EXIT_INTERRUPTED)
    plan = choices.plan
    if options.service == "system":
        plan = plan.with_credentials()
        create_configuration(paths)
    if plan.values:
        plan.write(path, os.environ)  # Everything has been tested by now.
        print(f"Wrote {', '.join([str(path), *plan.secrets])}.")
    if options.service == "system":
        credentials = credentials_drop_in(paths, plan.secrets) if plan.secrets else ""
        install(paths, credentials=credentials, restart=bool(plan.values))
    elif options.service == "user":
        install(paths)
    has_new_bot = any(key.startswith("channels.") for key in plan.values)
    directory = CurrentSetup.read(path).settings.gateway.data_dir
    option = f" --config {shlex.quote(str(options.config))}" if options.config else ""
    return asyncio.run(_apply(directory, prompter, option, needs_owner=has_new_bot and not options.owner))


async def _take_options(choices: Choices, options: argparse.Namespace) -> None:
    """Add what the options name. Raises `Refused` for the first choice that does not work."""
    if options.provider:
        await choices.add_model(options.provider, base_url=options.base_url, model=options.model, key=options.key)
    for given in options.token:
        channel, _, text = given.partition("=")
        if channel not in (known := bot_channels()) or not text:
            raise Refused(f"--token takes CHANNEL=REFERENCE. Channels with a token: {', '.join(known)}.")
        await choices.add_bot(channel, text)
    if options.owner:
        choices.add_owners(options.owner)


async def _apply(directory: Path, prompter: Prompter | None, option: str, *, needs_owner: bool) -> int:
    """Reload a running gateway and pair its owner. If none runs, print the next step.

    `option` names the configuration in the commands that are printed.
    """
    approve = f"`gatehouse pair approve CODE --owner{option}`"
    pairing = f"It replies with a code. Run {approve} to become its owner."
    if not await asyncio.to_thread(is_running, directory):
        print(f"Start the gateway with `gatehouse run{option}`.")
        if needs_owner:
            print(f"Then write to your bot. {pairing}")
        return EXIT_OK
    async with ControlClient(directory) as control:
        await request_reload(control)
        if needs_owner and prompter is None:
            print(f"Write to your bot. {pairing}")
        elif needs_owner and prompter is not None:
            question = "Write to your bot, and enter the code it replies with (leave empty to do this later)"
            while True:
                try:
                    code = await asyncio.to_thread(prompter.ask, question)
                except EOFError:
                    return fail(f"No owner yet. To become the owner, run {approve}.", EXIT_FAILED)
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
