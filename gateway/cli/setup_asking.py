"""The questions of `gatehouse setup`; the answers are the same options that could have been given."""

import argparse
import asyncio
from getpass import getpass
from typing import Protocol

from gateway.setup.models import PRESETS, local_models
from gateway.setup.plan import bots

__all__ = ["Guide", "Terminal", "choose"]


class Guide(Protocol):
    """Whoever asks a person. `EOFError` when nobody answers any more."""

    def say(self, text: str) -> None: ...

    def ask(self, question: str, default: str = "") -> str: ...

    def ask_secret(self, question: str) -> str:
        """Ask without showing what is typed."""


class Terminal:
    def say(self, text: str) -> None:
        print(text)

    def ask(self, question: str, default: str = "") -> str:
        return input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default

    def ask_secret(self, question: str) -> str:
        return getpass(f"{question}: ").strip()


def choose(options: argparse.Namespace, guide: Guide) -> argparse.Namespace:
    """Ask for all that was not given. An empty answer takes what is in brackets, or skips the step."""
    chosen = argparse.Namespace(**vars(options))
    _choose_model(chosen, guide)
    chosen.token = [*chosen.token, *_choose_bots(guide)]
    chosen.service = _one_of(guide, "Install it as a service?", ["none", "user", "system"], "none")
    return chosen


def _choose_model(chosen: argparse.Namespace, guide: Guide) -> None:
    local = asyncio.run(local_models())
    if local:
        guide.say(f"An Ollama runs on this machine, with {', '.join(local)}.")
    chosen.provider = _one_of(guide, "Where is the model?", list(PRESETS), "ollama" if local else "offline")
    preset = PRESETS[chosen.provider]
    if chosen.provider == "custom":
        chosen.base_url = guide.ask("The address of the endpoint, like http://127.0.0.1:8000/v1")
    if chosen.provider != "offline":
        first = local[0] if chosen.provider == "ollama" and local else preset.model
        chosen.model = guide.ask("Which model", first)
    if preset.needs_key or chosen.provider == "custom":
        chosen.key = guide.ask_secret("Its key (or env:NAME, file:PATH; it is not shown)") or None


def _choose_bots(guide: Guide) -> list[str]:
    tokens = []
    for channel, about in bots().items():
        guide.say(about.partition(". ")[2] or about)
        token = guide.ask_secret(f"The token of your bot for {channel} (empty: none; it is not shown)")
        if token:
            tokens.append(f"{channel}={token}")
    return tokens


def _one_of(guide: Guide, question: str, words: list[str], default: str) -> str:
    while True:
        answer = guide.ask(f"{question} ({', '.join(words)})", default).lower()
        if answer in words:
            return answer
        guide.say(f"Please choose one of: {', '.join(words)}.")
