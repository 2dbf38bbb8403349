"""Which files a call names, and when they count as changed."""

import os

import pytest

from gateway.agent.toolbox.named_files import digest_named_files
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.conversation import Json, ToolCall


@pytest.fixture(autouse=True)
def files(context: ToolContext) -> None:
    (context.workspace / "src/deep").mkdir(parents=True)
    for name in ("build.sh", "a b.txt", "src/run.py", "src/other.py", "src/deep/run.sh"):
        (context.workspace / name).write_text(name)


def named(context: ToolContext, **arguments: Json) -> dict[str, str]:
    return digest_named_files(context, ToolCall(id="c", name="shell", input=arguments))


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("sh build.sh", ["build.sh"]),
        ("make && ./build.sh;true", ["build.sh"]),
        ("sh /workspace/src/../build.sh", ["build.sh"]),
        ("cat 'a b.txt' >out", ["a b.txt"]),
        ("cd src && python run.py", ["src/run.py"]),
        ("python src/*.py", ["src/other.py", "src/run.py"]),
        ("python --file=src/run.py $(cat build.sh)", ["build.sh", "src/run.py"]),
        ('sh bu"ild".s\\h', ["build.sh"]),
        ('# don\'t\nsh bu"ild".sh', ["build.sh"]),
        ("sh bui\\\nld.sh", ["build.sh"]),
        ("cd src; cd deep; sh run.sh", ["src/deep/run.sh"]),
        ("# " + "a.sh " * 5_000 + "; sh build.sh", ["build.sh"]),
        (".//build.sh s?c/r*.py", ["build.sh"]),
        ("sh ./src/.././build.s?", ["build.sh"]),
        ("what? " * 3_000 + "sh build.sh", ["build.sh"]),
        ("cd src; cd ..; sh ../workspace/build.sh", ["build.sh"]),
        ("ls src /etc/passwd ../../etc/passwd ~", []),
        ("echo " + "x" * 40_000, []),
    ],
)
def test_paths_in_a_command_are_found(context: ToolContext, command: str, paths: list[str]) -> None:
    assert sorted(named(context, command=command)) == paths


def test_a_wildcard_does_not_lead_through_all_folders(context: ToolContext) -> None:
    for number in range(150):
        (context.workspace / f"src/deep/d{number}").mkdir()
    assert sorted(named(context, command="wc *")) == ["a b.txt", "build.sh", "src/other.py", "src/run.py"]


def test_paths_in_nested_arguments_are_found(context: ToolContext) -> None:
    assert sorted(named(context, files=[{"path": "src/run.py"}], path="build.sh", count=3)) == [
        "build.sh",
        "src/run.py",
    ]


def test_a_changed_or_new_file_changes_the_result(context: ToolContext) -> None:
    before = named(context, command="sh build.sh new.sh")
    (context.workspace / "new.sh").write_text("echo")
    created = named(context, command="sh build.sh new.sh")
    (context.workspace / "build.sh").write_text("rm")
    changed = named(context, command="sh build.sh new.sh")
    assert before != created != changed
    assert changed == named(context, command="sh build.sh new.sh")


def test_pipes_and_links_out_of_the_workspace_are_not_read(context: ToolContext) -> None:
    os.mkfifo(context.workspace / "pipe")
    (context.workspace / "link").symlink_to("/etc/passwd")
    assert named(context, command="cat pipe link") == {}


def test_a_call_that_names_too_many_files_is_refused(context: ToolContext) -> None:
    for number in range(501):
        (context.workspace / f"f{number}.txt").touch()
    with pytest.raises(ToolFailed, match="too many files"):
        named(context, command="cat *.txt; sh build.sh")
