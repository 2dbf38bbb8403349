"""What goes over the socket of the sandbox's service: a script there, how it ended back, each one line of JSON."""

import json
from dataclasses import asdict
from pathlib import Path

from gateway.sandbox.processes import Bounds, Ended
from gateway.sandbox.script import Script
from gateway.sandbox.walls import Limits, NoSandbox

__all__ = ["MAX_LINE", "answer_of", "line_of", "refusal", "reply", "script_of"]

MAX_LINE = 4 * 1024 * 1024
"""Bytes. The longest command and the longest output are much shorter, also with every character escaped."""


def line_of(script: Script) -> bytes:
    return _line({**asdict(script), "workspace": str(script.workspace)})


def script_of(line: bytes) -> Script:
    """Raise `ValueError` for what is no script."""
    told = json.loads(line)
    try:
        return Script(
            command=str(told["command"]),
            workspace=Path(told["workspace"]),
            limits=Limits(**told["limits"]),
            bounds=Bounds(**told["bounds"]),
            network=bool(told["network"]),
        )
    except (TypeError, KeyError) as misfit:
        raise ValueError("that is no script") from misfit


def reply(ended: Ended) -> bytes:
    return _line({"ended": asdict(ended)})


def refusal(reason: str) -> bytes:
    return _line({"refused": reason})


def answer_of(line: bytes) -> Ended:
    """Raise `NoSandbox` where the far side had none, and `ValueError` for what is no answer."""
    told = json.loads(line)
    if "refused" in told:
        raise NoSandbox(told["refused"])
    return Ended(**told["ended"])


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
