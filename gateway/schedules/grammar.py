"""Parses `/schedule add`: when the schedule runs, its options, and what it asks."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from gateway.errors import Refused
from gateway.scheduler.recurrence import count_words_of_time, parse_span
from gateway.spool import ScheduleCheck, ScheduleContent
from gateway.text import excerpt

EXAMPLE = '/schedule add "0 8 * * *" Look at the news and tell me'
_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"'))
_QUOTED = re.compile(r'"([^"]*)"\s*')
_OPTION = re.compile(r'([a-z_]+)=(?:"([^"]*)"|(\S+))(?:\s+|$)')
_MORE_TIME = re.compile(r"(?:at|on)\s+\S+", re.IGNORECASE)
"""What a person may write after an interval, which would otherwise become the begin of the prompt."""
_YES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
OPTIONS = (
    *("zone", "agent", "session", "missed", "jitter", "deliver"),
    *("check", "url", "pointer", "on_change", "quote"),
    *("tokens", "tokens_per_day", "cost_per_day"),
)
"""The names of the options, as in `jitter=5m`. They stand between the time and the prompt."""


def split_addition(argument: str) -> tuple[str, dict[str, str], str]:
    """Return the time, the options and the prompt. Raises `Refused` if there is no time."""
    text = argument.strip()
    # Quotes in the prompt stay as they are.
    straight = text.translate(_QUOTES)
    if (quoted := _QUOTED.match(straight)) is not None:
        when, at = quoted[1], quoted.end()
    else:
        words = re.findall(r"\S+\s*", text)
        length = count_words_of_time([word.strip() for word in words])
        if not length:
            raise Refused(
                f"When shall it run? Begin with the time, like {EXAMPLE}. It may also be every 2h, or daily 8:00."
            )
        when, at = "".join(words[:length]).strip().removesuffix(","), sum(map(len, words[:length]))
        if when.lower().startswith("every") and (more := _MORE_TIME.match(text, at)) is not None:
            raise Refused(
                f"I don't understand the time after {when}: {excerpt(more[0], 40)}. Write it like daily 8:00 or "
                f'mondays 9:30, or as a cron line. If it belongs to the prompt, write "{when}" in quotes.'
            )
    options: dict[str, str] = {}
    while (option := _OPTION.match(straight, at)) is not None and option[1] in OPTIONS:
        options[option[1]] = option[2] if option[2] is not None else option[3]
        at = option.end()
    return when, options, text[at:].strip()


def with_options(about: ScheduleContent, options: Mapping[str, str]) -> ScheduleContent:
    """Return a schedule with the options of a person. Raises `Refused` for a value that is none."""
    session, missed = options.get("session", "own"), options.get("missed", "once")
    if session not in {"own", "chat"}:
        raise Refused("The session is own or chat: session=chat lets it write into this conversation.")
    if missed not in {"once", "skip"}:
        raise Refused("The value of missed is once or skip: whether it runs after the gateway was down at its time.")
    check = None
    if "check" in options or "url" in options:
        if "check" in options and "url" in options:
            raise Refused("A check is a command or an address. Keep one of check= and url=.")
        check = ScheduleCheck(
            command=options.get("check", ""),
            url=options.get("url", ""),
            pointer=options.get("pointer", ""),
            on_change=_yes(options, "on_change", usual=False),
            quotes=_yes(options, "quote", usual=True),
        )
        check_pointer(check)
    try:
        jitter = parse_span(options["jitter"]) if "jitter" in options else 0.0
    except Refused as reason:
        raise Refused(f"{reason}.") from reason
    return replace(
        about,
        agent=options.get("agent", "").lower(),
        is_apart=session == "own",
        is_skipped_if_missed=missed == "skip",
        jitter=jitter,
        delivers=_yes(options, "deliver", usual=False),
        check=check,
        tokens_per_run=int(_number(options, "tokens")),
        tokens_per_day=int(_number(options, "tokens_per_day")),
        cost_per_day=_number(options, "cost_per_day"),
    )


def check_pointer(check: ScheduleCheck) -> None:
    """Raise `Refused` for a check that cannot be made."""
    if check.pointer and not (check.pointer.startswith("/") and check.url):
        raise Refused("A pointer is a JSON Pointer into the content of an address, like /items/0/title.")
    if check.url and not re.match(r"https?://\S+$", check.url, re.IGNORECASE):
        raise Refused("The address of a check starts with http:// or https://.")


def _yes(options: Mapping[str, str], name: str, *, usual: bool) -> bool:
    value = options.get(name)
    if value is None:
        return usual
    if value.lower() not in _YES:
        raise Refused(f"{name} is yes or no.")
    return _YES[value.lower()]


def _number(options: Mapping[str, str], name: str) -> float:
    value = options.get(name, "0").replace("_", "")
    if not re.fullmatch(r"\d{1,12}(\.\d{1,6})?", value):
        raise Refused(f"{name} is a number, like {name}=50000.")
    return float(value)
