"""`gatehouse status --watch`: a live screen that also tells when the daemon is away, and when it is back."""

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import msgspec

from config import ConfigError
from gateway.cli.exits import EXIT_CONFIG, complain
from gateway.cli.settings import load_settings
from gateway.cli.status_screen import screen
from gateway.control import Control, NotRunning
from gateway.errors import Refused
from gateway.watch.facts import Facts

__all__ = ["read_facts", "watch"]

_TO_TOP, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def watch(config: Path | None, *, every: float, as_json: bool) -> int:
    """Show the facts again and again, until interrupted; in a pipe, one after the other."""
    try:
        directory = load_settings(config, resolves=False).settings.gateway.data_dir
    except ConfigError as mistakes:
        return complain(mistakes, EXIT_CONFIG)
    if as_json or not sys.stdout.isatty():
        asyncio.run(_print_for_ever(directory, every, as_json=as_json))
    sys.stdout.write(_OTHER_SCREEN)
    try:
        asyncio.run(_draw_for_ever(directory, every))
    finally:
        sys.stdout.write(_OWN_SCREEN)
        sys.stdout.flush()


async def read_facts(control: Control) -> Facts:
    try:
        return msgspec.convert(await control.get("/status"), Facts)
    except msgspec.ValidationError as other:
        raise Refused("The daemon's answer is not as expected; is it of the same version?") from other


async def _draw_for_ever(directory: Path, every: float) -> NoReturn:
    while True:
        _draw(await _seen(directory))
        await asyncio.sleep(every)


async def _print_for_ever(directory: Path, every: float, *, as_json: bool) -> NoReturn:
    while True:
        if as_json:
            print(await _as_json(directory), flush=True)
        else:
            print("\n".join([*await _seen(directory), ""]), flush=True)
        await asyncio.sleep(every)


def _draw(lines: Sequence[str]) -> None:
    """Write over what is there, so that nothing flickers."""
    width, height = shutil.get_terminal_size()
    head = f"{datetime.now().astimezone():%H:%M:%S}  (Ctrl-C ends this)"
    # What does not fit would move what is there, and the next picture would be drawn elsewhere.
    fitting = [line[: width - 1] for line in (head, "", *lines)][: height - 1]
    sys.stdout.write(_TO_TOP + "".join(f"{line}{_END_OF_LINE}\n" for line in fitting) + _REST)
    sys.stdout.flush()


async def _seen(directory: Path) -> list[str]:
    try:
        async with Control(directory) as control:
            return screen(await read_facts(control))
    except (NotRunning, Refused) as trouble:
        return [str(trouble)]


async def _as_json(directory: Path) -> str:
    try:
        async with Control(directory) as control:
            return json.dumps(await control.get("/status"))
    except (NotRunning, Refused) as trouble:
        return json.dumps({"error": str(trouble)})
