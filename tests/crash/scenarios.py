"""The conversations that the crash tests repeat."""

from tests.crash.checks import SECRET
from tests.crash.fake_platform import Event
from tests.crash.scenario_run import Plan


def messages(*words: str) -> tuple[Event, ...]:
    """Make events from `chat:text`, with the ids m1, m2 and so on."""
    made = []
    for number, word in enumerate(words, 1):
        chat, _, text = word.partition(":")
        mid = f"m{number}"
        made.append(Event(id=mid, chat=chat, text=text if text.startswith("/") else f"{mid} {text}".strip()))
    return tuple(made)


SCENARIOS = {
    "tools": Plan(events=messages("ada:tool tools", "bob:", "ada:")),
    "editing": Plan(events=messages("ada:tool", "ada:"), flavour="editing"),
    "dropping": Plan(events=messages("ada:", "ada:long"), flavour="dropping"),
    "long": Plan(events=messages("ada:long", "ada:"), troubles={"ada": ("", "lost", "slow")}),
    "rotating": Plan(events=messages("ada:", "ada:/new", "ada:", "ada:/session resume 1", "ada:")),
    "archiving": Plan(
        events=messages("ada:", "ada:/new", "ada:", "ada:/new", "ada:", "ada:/new", "ada:/session restore 1", "ada:"),
        backlog_limit=1,
    ),
    "deleting": Plan(events=messages(f"ada:tool {SECRET}", "ada:/new", "ada:", "ada:/session delete 1 yes", "ada:")),
    "queued": Plan(events=messages("ada:tool", "ada:/undo", "ada:", "ada:/retry", "ada:/clear", "ada:")),
    "reading": Plan(events=messages("ada:tool", "ada:/session search m1", "ada:/history", "ada:", "ada:/status")),
    "interrupt": Plan(events=messages("ada:tool", "ada:", "ada:tool", "ada:", "ada:"), busy="interrupt"),
    "collect": Plan(events=messages("ada:tool", "ada:", "ada:"), busy="collect"),
    "steer": Plan(events=messages("ada:tool tool", "ada:tool", "ada:"), busy="steer"),
    "asking": Plan(events=messages("ada:asks tool", "ada:")),
}
