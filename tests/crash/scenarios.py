"""What people write in the runs."""

from tests.crash.far_side import Event
from tests.crash.runs import Plan

__all__ = ["SCENARIOS"]


def said(*words: str) -> tuple[Event, ...]:
    """Make events of `chat:text`, each with an id of its own, in order."""
    made = []
    for number, word in enumerate(words, 1):
        chat, _, text = word.partition(":")
        mid = f"m{number}"
        made.append(Event(id=mid, chat=chat, text=text if text.startswith("/") else f"{mid} {text}".strip()))
    return tuple(made)


SCENARIOS = {
    "tools": Plan(events=said("ada:tool tools", "bob:", "ada:")),
    "editing": Plan(events=said("ada:tool", "ada:"), flavour="editing"),
    "dropping": Plan(events=said("ada:", "ada:long"), flavour="dropping"),
    "long": Plan(events=said("ada:long", "ada:"), troubles={"ada": ("", "lost", "slow")}),
    "rotating": Plan(events=said("ada:", "ada:/new", "ada:", "ada:/session resume 1", "ada:")),
    "queued": Plan(events=said("ada:tool", "ada:/undo", "ada:", "ada:/retry", "ada:/clear", "ada:")),
    "reading": Plan(events=said("ada:tool", "ada:/session search m1", "ada:/history", "ada:", "ada:/status")),
    "interrupt": Plan(events=said("ada:tool", "ada:", "ada:tool", "ada:", "ada:"), busy="interrupt"),
    "collect": Plan(events=said("ada:tool", "ada:", "ada:"), busy="collect"),
    "steer": Plan(events=said("ada:tool tool", "ada:tool", "ada:"), busy="steer"),
    "asking": Plan(events=said("ada:asks tool", "ada:")),
}
