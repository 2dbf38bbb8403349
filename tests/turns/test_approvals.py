import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Json, ToolCall
from gateway.turns.question import full_text, is_shortened, question_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def asked(asker: str = "", **arguments: Json) -> str:
    return question_text(ToolCall(id="c", name="shell", input=arguments), timeout=600, asker=asker)


def test_a_question_names_the_tool_its_arguments_and_the_deadline() -> None:
    assert asked(command="make\ninstall", tries=3).splitlines() == [
        "May I use shell?",
        '  command: "make\\ninstall"',
        "  tries: 3",
        "Reply yes or no. If you don't reply within 10 min, it's denied.",
    ]


def test_a_question_in_a_group_names_the_people_who_may_answer() -> None:
    assert asked("Ada").splitlines()[-1].startswith("Ada or an owner, reply yes or no.")


def test_neither_end_of_a_long_argument_can_hide() -> None:
    shown = asked(command="a" * 5_000 + "; rm -rf ~")
    assert "; rm -rf ~" in shown
    assert "characters ...]" in shown
    assert len(shown) < 1_200


def test_invisible_characters_are_escaped() -> None:
    shown = asked(command="ls \u202etxt.exe\u200b\x1b[2J\u2028")
    assert "\\u202etxt.exe\\u200b\\u001b[2J\\u2028" in shown


@given(st.text(max_size=80), st.dictionaries(st.text(max_size=80), VALUES, max_size=20))
def test_each_argument_is_one_printable_line(name: str, given_: dict[str, Json]) -> None:
    call = ToolCall(id="c", name=name, input=given_)
    lines = question_text(call, timeout=1).split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 2 + min(len(json.loads(json.dumps(given_))), 12) + (len(given_) > 12) + is_shortened(call)


def test_the_full_text_hides_nothing_and_no_line_of_an_argument_looks_like_another() -> None:
    script = "echo 1\npath: /etc\n" + "x" * 5_000 + "\u202e\x1b[2K"
    call = ToolCall(id="c", name="shell", input={"command": script, "options": {"a": [1]}})
    assert is_shortened(call)
    lines = full_text(call).split("\n")
    assert lines[:4] == ["All of shell:", "command:", "  | echo 1", "  | path: /etc"]
    assert lines[4] == "  | " + "x" * 5_000 + "\\u202e\\u001b[2K"
    assert lines[5:7] == ["options:", "  | {"]


def test_a_question_names_the_files_that_must_not_change() -> None:
    call = ToolCall(id="c", name="shell", input={"command": "sh build.sh"})
    text = question_text(call, timeout=1, files=["build.sh"])
    assert "It names 1 file: build.sh. If it changes, I won't run this." in text


def test_a_question_in_a_chat_of_another_channel_names_itself_in_every_command() -> None:
    """Another question may be open there."""
    call = ToolCall(id="c", name="shell", input={"command": "x" * 5_000})
    text = question_text(call, timeout=60, may_always=True, elsewhere="0123456789ab")
    for command in ("approve", "deny", "approvals show"):
        assert f"/{command} 0123456789ab" in text
    assert "/approve 0123456789ab always" in text
    assert text.count("0123456789ab") == text.count("/")
