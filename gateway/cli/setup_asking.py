"""The questions of `gatehouse setup`; the answers are the same options that could have been given."""

import argparse
import asyncio
import os
from getpass import getpass
from typing import Protocol

from gateway.setup.models import PRESETS, local_models, ollama_at, usual_place
from gateway.setup.plan import bots
from gateway.setup.standing import Standing

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


def choose(options: argparse.Namespace, guide: Guide, standing: Standing) -> argparse.Namespace:
    """Ask for all that was not given. An empty answer takes what is in brackets, or leaves things as they are."""
    chosen = argparse.Namespace(**vars(options))
    _choose_model(chosen, guide, standing)
    chosen.token = [*chosen.token, *_choose_bots(guide, standing)]
    chosen.service = _one_of(guide, "Install it as a service?", ["none", "user", "system"], "none")
    return chosen


def _choose_model(chosen: argparse.Namespace, guide: Guide, standing: Standing) -> None:
    place = ollama_at(os.environ)
    local = asyncio.run(local_models(place))
    if local:
        guide.say(f"An Ollama runs on this machine, with {', '.join(local)}.")
    chosen.provider = _one_of(guide, "Where is the model?", list(PRESETS), _likely(standing, has_ollama=bool(local)))
    if chosen.provider == "offline":
        return
    if chosen.provider == "custom":
        present = standing.base_url("custom") or ""
        chosen.base_url = guide.ask("The address of the endpoint, like http://127.0.0.1:8000/v1", present)
    if chosen.provider == "ollama" and local:
        chosen.base_url = f"{place}/v1"
    first = local[0] if chosen.provider == "ollama" and local else PRESETS[chosen.provider].model
    chosen.model = guide.ask("Which model", standing.model(chosen.provider) or first)
    if PRESETS[chosen.provider].needs_key or chosen.provider == "custom":
        chosen.key = guide.ask_secret(f"Its key ({_key_hint(chosen, standing)}; it is not shown)") or None


def _likely(standing: Standing, *, has_ollama: bool) -> str:
    """Propose what there is already or, where nothing was chosen yet, what is to be had for nothing."""
    if standing.provider in PRESETS and standing.provider != "offline":
        return standing.provider
    return "ollama" if has_ollama else "offline"


def _key_hint(chosen: argparse.Namespace, standing: Standing) -> str:
    place = chosen.base_url or standing.base_url(chosen.provider) or usual_place(chosen.provider, os.environ)
    kept = "; empty: as it is" if standing.key(chosen.provider, place) else ""
    return f"or env:NAME, file:PATH{kept}"


def _choose_bots(guide: Guide, standing: Standing) -> list[str]:
    tokens = []
    for channel, about in bots().items():
        guide.say(about.partition(". ")[2] or about)
        empty = "as it is" if standing.has_token(channel) else "none"
        token = guide.ask_secret(f"The token of your bot for {channel} (empty: {empty}; it is not shown)")
        if token:
            tokens.append(f"{channel}={token}")
    return tokens


def _one_of(guide: Guide, question: str, words: list[str], default: str) -> str:
    while True:
        answer = guide.ask(f"{question} ({', '.join(words)})", default).lower()
        if answer in words:
            return answer
        guide.say(f"Please choose one of: {', '.join(words)}.")
