"""The questions of `gatehouse setup`. Each answer is checked as it is given, and a wrong one is asked for again."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from getpass import getpass
from typing import Protocol

from gateway.cli.setup.choices import Choices, bot_channels, check_url
from gateway.errors import Refused
from gateway.install.setup import PRESETS, default_base_url, list_ollama_models, ollama_url

INTRODUCTION = (
    "Setup asks for a service, a model and your bots, and tests each of them.\n"
    "Nothing is written until the end.\n"
    "Enter takes the suggestion in [brackets]. Ctrl-C leaves, and changes nothing."
)


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
        suggestion = f" [{default}]" if default else ""
        end = " " if question.endswith("?") and not default else ": "
        return input(f"{question}{suggestion}{end}").strip() or default

    def ask_secret(self, question: str) -> str:
        return getpass(f"{question}: ").strip()


def ask_service(prompter: Prompter) -> str:
    """Ask how the gateway should run. The system service has its own configuration, so this question comes first."""
    while True:
        service = _choose(prompter, "Install it as a service?", ["none", "user", "system"], "none")
        if service != "system" or os.geteuid() == 0:
            return service
        prompter.say("Only root can set up the system service. Choose another one, or start again with sudo.")


def ask_model(prompter: Prompter, choices: Choices) -> None:
    """Ask for the model until one answers. Answers of a failed attempt are the suggestions of the next one."""
    current = choices.current
    ollama = ollama_url(choices.environ)
    local_models = asyncio.run(list_ollama_models(ollama))
    if local_models:
        prompter.say(f"Ollama is running on this machine with {', '.join(local_models)}.")
    # Suggest the provider in use, or else one that costs nothing.
    provider = "ollama" if local_models else "offline"
    if current.provider in PRESETS and current.provider != "offline":
        provider = current.provider
    url, models, keys = current.base_url("custom") or "", dict[str, str](), dict[tuple[str, str | None], str]()
    while True:
        provider = _choose(prompter, "Which model provider?", list(PRESETS), provider)
        preset = PRESETS[provider]
        base_url = None
        if provider == "custom":
            base_url = url = _ask_url(prompter, url)
        elif provider == "ollama" and local_models:
            base_url = f"{ollama}/v1"
        model = None
        if provider != "offline":
            suggested = local_models[0] if provider == "ollama" and local_models else preset.model
            suggested = models.get(provider) or current.model(provider) or suggested
            ask = partial(prompter.ask, "Which model?", suggested)
            model = models[provider] = _ask_checked(prompter, ask, _required)
        key = None
        if preset.needs_key or provider == "custom":
            endpoint = base_url or current.base_url(provider) or default_base_url(provider, choices.environ)
            known = keys.get((provider, endpoint)) or current.key(provider, endpoint)
            key = _ask_key(prompter, choices, known=known, is_required=preset.needs_key)
            if key:
                keys[provider, endpoint] = key
        try:
            return asyncio.run(choices.add_model(provider, base_url=base_url, model=model, key=key))
        except Refused as refusal:
            prompter.say(f"{refusal} Try again, or choose another provider.")


def ask_bots(prompter: Prompter, choices: Choices) -> None:
    """Ask for the token of each bot until its platform accepts it. An empty answer goes on to the next bot."""
    for channel, instructions in bot_channels().items():
        prompter.say(instructions)
        empty = "keep the current one" if choices.current.has_token(channel) else "skip"
        while token := prompter.ask_secret(f"Token of your {channel} bot (hidden; leave empty to {empty})"):
            try:
                asyncio.run(choices.add_bot(channel, token))
                break
            except Refused as refusal:
                prompter.say(str(refusal))


def _choose(prompter: Prompter, question: str, words: list[str], default: str) -> str:
    while True:
        answer = prompter.ask(f"{question} ({', '.join(words)})", default).lower()
        if answer in words:
            return answer
        prompter.say(f"Please choose one of: {', '.join(words)}.")


def _ask_url(prompter: Prompter, default: str) -> str:
    while True:
        url = prompter.ask("URL of the endpoint, like http://127.0.0.1:8000/v1", default)
        try:
            _required(url)
            check_url(url)
        except Refused as refusal:
            prompter.say(str(refusal))
            # Most people who leave the scheme out mean a server on their own machine.
            default = f"http://{url}" if url and "://" not in url else default
        else:
            return url


def _ask_key(prompter: Prompter, choices: Choices, *, known: str | None, is_required: bool) -> str | None:
    keep = "; leave empty to keep the current one" if known else "" if is_required else "; leave empty for none"

    def check(key: str) -> None:
        if not key and is_required and not known:
            raise Refused("This provider needs a key.")
        if key:
            choices.resolve_secret(key)

    question = f"API key (hidden; or env:NAME, file:PATH{keep})"
    return _ask_checked(prompter, partial(prompter.ask_secret, question), check) or known


def _ask_checked(prompter: Prompter, ask: Callable[[], str], check: Callable[[str], None]) -> str:
    """Ask until `check` does not raise `Refused`."""
    while True:
        answer = ask()
        try:
            check(answer)
        except Refused as refusal:
            prompter.say(str(refusal))
        else:
            return answer


def _required(answer: str) -> None:
    if not answer:
        raise Refused("This needs an answer.")
