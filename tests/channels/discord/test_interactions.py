from datetime import UTC, datetime

import pytest

from channels.discord.interactions import choices, is_same, menu, typed
from gateway.commands import COMMANDS
from gateway.contract import CommandInfo, SessionInfo

ALL = [
    CommandInfo(name=command.name, arguments=command.arguments, summary=command.summary, aliases=command.aliases)
    for command in COMMANDS
]


def test_every_command_is_there_once_and_fits() -> None:
    entries = menu(ALL)
    names = [
        f"{entry['name']} {option['name']}" if option else entry["name"]
        for entry in entries
        for option in ([each for each in entry["options"] if each["type"] == 1] or [None])
    ]
    known = {name: command.name for command in ALL for name in (command.name, *command.aliases)}
    assert sorted(known[name] for name in names) == sorted(command.name for command in ALL)
    assert "pair list" in names
    assert len(entries) <= 100
    for entry in entries:
        assert all(len(each["description"]) <= 100 for each in (entry, *entry["options"]))
        assert all(len(each["options"]) <= 25 for each in (entry, *entry["options"]) if "options" in each)


def test_numbers_of_sessions_are_completed_and_required_options_come_first() -> None:
    session = next(entry for entry in menu(ALL) if entry["name"] == "session")
    rename = next(option for option in session["options"] if option["name"] == "rename")
    title, number = rename["options"]
    assert (title["name"], title["required"], title["autocomplete"]) == ("title", True, False)
    assert (number["name"], number["required"], number["autocomplete"]) == ("number", False, True)


def test_what_discord_adds_and_leaves_out_makes_no_difference() -> None:
    ours = menu(ALL)
    theirs = [
        {"id": str(number), "version": "1", "nsfw": False, **{key: value for key, value in entry.items() if value}}
        for number, entry in enumerate(reversed(ours))
    ]
    assert is_same(ours, theirs)
    assert not is_same(ours, theirs[1:])
    assert not is_same(ours, [{**theirs[0], "description": "other"}, *theirs[1:]])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"name": "status"}, "/status"),
        ({"name": "new", "options": [{"type": 3, "name": "title", "value": "A trip"}]}, "/new A trip"),
        ({"name": "session", "options": [{"type": 1, "name": "list"}]}, "/session list"),
        (
            {
                "name": "session",
                "options": [
                    {
                        "type": 1,
                        "name": "rename",
                        "options": [
                            {"type": 3, "name": "title", "value": "Trip"},
                            {"type": 4, "name": "number", "value": 2},
                        ],
                    }
                ],
            },
            "/session rename 2 Trip",
        ),
        ({"name": "gone", "options": [{"type": 3, "name": "x", "value": "y"}]}, "/gone y"),
    ],
)
def test_what_was_picked_is_what_would_have_been_typed(data: dict[str, object], expected: str) -> None:
    assert typed(data, ALL) == expected


def test_no_more_is_offered_than_discord_takes() -> None:
    sessions = [
        SessionInfo(number=number, title="x" * 200, messages=1, updated_at=datetime.now(UTC), is_active=False)
        for number in range(1, 60)
    ]
    offered = choices({"options": [{"name": "number", "value": "", "focused": True}]}, sessions)
    assert len(offered) == 25
    assert all(len(choice["name"]) <= 100 for choice in offered)
    begun = choices({"options": [{"name": "number", "value": "5", "focused": True}]}, sessions)
    assert [choice["value"] for choice in begun] == [5, *range(50, 60)]
