"""Escape attempts of a coding agent, through the gateway: out of its repository, and into the daemon's own git."""

import shlex
import socket
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.daemon import Daemon
from tests.acp.harness import SCRIPTED_AGENT, coder, git, make_repo, needs_sandbox
from tests.daemon.harness import ask, gateway

pytestmark = needs_sandbox

CANARY = "tangerine-7f3a"
"""A secret: a file with this word must never be readable for an agent."""


def with_secrets(folder: Path, **agent: Any) -> Settings:  # noqa: ANN401 - values of the settings.
    """Return settings, with secrets in the data directory and in another repository."""
    configured = coder(folder, **agent)
    (folder / "data").mkdir(mode=0o700, exist_ok=True)
    (folder / "data/secret").write_text(CANARY)
    if not (folder / "repos/other").exists():
        other = make_repo(folder / "repos/other")
        (other / "secret").write_text(CANARY)
        git(other, "add", "secret")
        git(other, "commit", "-q", "-m", CANARY)
    return configured


async def run(chat: LoopbackChannel, *commands: str) -> str:
    """Let the agent run shell commands. Returns the answer."""
    return await ask(chat, " ;; ".join(f"run {command}" for command in commands))


async def test_an_agent_reads_nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARY)
    data, other = tmp_path / "data", tmp_path / "repos/other"
    async with gateway(with_secrets(tmp_path)) as (_, chat):
        answer = await run(
            chat,
            f"cat ../../data/secret {data}/secret ../other/secret {other}/.git/HEAD",
            f"ln -s {data} data; ln -s {other} other; cat data/secret other/secret",
            f"ls -a .. ../.. {data} {tmp_path} | tr '\\n' ' '",
            "cat /proc/[0-9]*/environ | tr '\\0' '\\n'",
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
            "ls -d /proc/[0-9]*/root/root /proc/[0-9]*/cwd/../../data",
            "env",
            f"grep -rl {CANARY.replace('-', '[-]')} / --include=secret 2>/dev/null",
        )
    assert CANARY not in answer
    assert "python -m pytest" not in answer
    assert "http.token" not in answer
    assert "control.sock" not in answer
    assert "[exit 0]" in answer, "the commands ran"


async def test_an_agent_connects_to_nothing(tmp_path: Path) -> None:
    connect = "import socket,sys; s=socket.socket({}); s.settimeout(5); s.connect({}); print('conn'+'ected')"
    with socket.create_server(("127.0.0.1", 0)) as server:
        internet = connect.format("", repr(server.getsockname()))
        local = connect.format("socket.AF_UNIX", repr(str(tmp_path / "data/control.sock")))
        sandbox = {"network": False, "readable": (SCRIPTED_AGENT,)}
        async with gateway(with_secrets(tmp_path, sandbox=sandbox)) as (_, chat):
            assert (tmp_path / "data/control.sock").exists()
            answer = await run(chat, *(f"/usr/bin/python3 -c {shlex.quote(code)}" for code in (internet, local)))
    assert answer.count("Error") == 2
    assert "connected" not in answer


@pytest.mark.parametrize("has_worktrees", [False, True])
async def test_an_agent_reads_no_home_and_no_worktree_of_another_session(tmp_path: Path, has_worktrees: bool) -> None:  # noqa: FBT001 - a parameter of the test.
    async with gateway(with_secrets(tmp_path, worktree=has_worktrees)) as (_, chat):
        await run(chat, f"echo {CANARY} >$HOME/secret", f"echo {CANARY} >secret" if has_worktrees else "true")
        await ask(chat, "/new")
        answer = await run(
            chat,
            "ls -A $HOME; cat $HOME/secret",
            f"find / -name secret -not -path '/proc/*' 2>/dev/null; ls {tmp_path}/data/agents",
            f"ls {tmp_path}/data/worktrees/app | wc -l",
            f"cat {tmp_path}/data/worktrees/app/*/secret {tmp_path}/data/agents/*/home/secret",
        )
    assert CANARY not in answer
    assert f"{tmp_path}/data/agents/" not in answer.replace(f"'{tmp_path}/data/agents", "")
    assert "/secret\n" not in answer


async def test_files_of_the_client_are_those_of_the_repository(tmp_path: Path) -> None:
    """The daemon reads them, outside of the sandbox."""
    data = tmp_path / "data"
    async with gateway(with_secrets(tmp_path, client_files=True)) as (_, chat):
        answer = await ask(
            chat,
            f"run ln -s {data} d; ln -s {data}/secret s; ln -s ../.. up; mkdir sub; ln -s {data} sub/d"
            f" ;; client_read d/secret ;; client_read s ;; client_read up/data/secret ;; client_read sub/d/secret"
            f" ;; client_read ../../data/secret ;; client_read {data}/secret ;; client_read sub/../../other/secret"
            f" ;; client_read /proc/self/environ ;; client_write d/new x ;; client_write up/new x"
            f" ;; client_write .git/hooks/post-checkout x ;; client_write s x",
        )
        # A folder that changes between a link and a folder while the daemon opens it.
        swap = f"run (for i in $(seq 300); do rm -f x; mkdir x; echo own >x/secret; rm -r x; ln -s {data} x; done) & :"
        read = " ;; ".join(["client_read x/secret"] * 100)
        answer += await ask(chat, f"{swap} ;; {read}")
    assert answer.count("refused") >= 12
    assert CANARY not in answer
    assert (data / "secret").read_text() == CANARY
    assert not (data / "new").exists()
    assert not (tmp_path / "new").exists()


PAYLOAD = "#!/bin/sh\ncat {data}/secret >{repo}/leak-$$ 2>/dev/null\ntouch {data}/pwned {repo}/pwned\ncat\n"


async def use_git(daemon: Daemon, chat: LoopbackChannel) -> str:
    """Let the daemon use git in every way that a chat can cause. Returns all answers."""
    answers = [await ask(chat, command) for command in ("/session info", "/diff", "/diff README.md", "/repos")]
    answers += [await ask(chat, "/new"), await ask(chat, "say Hello.")]
    answers += [await ask(chat, "/session info"), await ask(chat, "/session close")]
    await daemon.worktrees.reconcile()
    return "\n".join(answers)


@pytest.mark.parametrize("has_worktrees", [False, True])
async def test_code_that_an_agent_plants_in_git_is_not_run_by_the_daemon(tmp_path: Path, has_worktrees: bool) -> None:  # noqa: FBT001 - as above.
    """It may run where it can read and change nothing but the repository."""
    data, repo = tmp_path / "data", tmp_path / "repos/app"
    script = PAYLOAD.format(data=data, repo=repo)
    common = "$(git rev-parse --path-format=absolute --git-common-dir)"
    keys = {
        "core.fsmonitor": f"{repo}/.git/payload",
        "core.hooksPath": f"{repo}/.git/hooks",
        "core.pager": f"{repo}/.git/payload",
        "core.sshCommand": f"{repo}/.git/payload",
        "core.alternateRefsCommand": f"{repo}/.git/payload",
        "diff.external": f"{repo}/.git/payload",
        "diff.x.textconv": f"{repo}/.git/payload",
        "diff.x.command": f"{repo}/.git/payload",
        "filter.x.clean": f"{repo}/.git/payload",
        "filter.x.smudge": f"{repo}/.git/payload",
        "filter.x.process": f"{repo}/.git/payload",
        "include.path": f"{data}/secret",
        "gpg.program": f"{repo}/.git/payload",
        "alias.status": f"!{repo}/.git/payload",
        "alias.diff": f"!{repo}/.git/payload",
        "core.worktree": str(data),
    }
    config = "; ".join(
        f"git config --file {common}/config --add {key} {shlex.quote(value)}" for key, value in keys.items()
    )
    hooks = "post-checkout reference-transaction post-index-change fsmonitor-watchman pre-auto-gc"
    async with gateway(with_secrets(tmp_path, worktree=has_worktrees)) as (daemon, chat):
        planted = await run(
            chat,
            f"echo {b64encode(script.encode()).decode()} | base64 -d >{common}/payload; chmod +x {common}/payload",
            f"for hook in {hooks}; do cp {common}/payload {common}/hooks/$hook; done",
            f"mkdir -p {common}/info; echo '* filter=x diff=x' | tee .gitattributes >{common}/info/attributes",
            f"echo changed >>README.md; ln -s {data}/secret link; ln -s {data} folder; echo new >new",
            config,
        )
        assert (repo / ".git/payload").exists(), planted
        answers = await use_git(daemon, chat)
    assert CANARY not in answers
    assert not (data / "pwned").exists()
    leaks = [path for path in repo.rglob("leak-*") if CANARY in path.read_text()]
    assert leaks == []


PLANTS = {
    "link": "mv .git old; ln -s {other}/.git .git",
    "pointer": "mv .git old; echo 'gitdir: {other}/.git' >.git",
    "pointer to a file": "mv .git old; echo 'gitdir: {data}/secret' >.git",
    "common folder": "echo {other}/.git >.git/commondir",
    "alternates": "echo {other}/.git/objects >.git/objects/info/alternates; git update-ref refs/heads/x {commit}",
    "submodule": (
        "mkdir sub; echo 'gitdir: {other}/.git' >sub/.git; git update-index --add --cacheinfo 160000,{commit},sub"
    ),
    "worktree": (
        "mkdir -p .git/worktrees/x; cp .git/HEAD .git/worktrees/x; echo {data}/secret >.git/worktrees/x/gitdir; "
        "echo {other}/.git >.git/worktrees/x/commondir"
    ),
    "index": "rm .git/index; ln -s {other}/.git/index .git/index",
    "head": "rm .git/HEAD; ln -s {other}/.git/HEAD .git/HEAD",
    "no git": "rm -rf .git",
}


@pytest.mark.parametrize("plant", PLANTS)
async def test_a_planted_pointer_shows_nothing_of_another_repository(tmp_path: Path, plant: str) -> None:
    configured = with_secrets(tmp_path)
    other, data = tmp_path / "repos/other", tmp_path / "data"
    commit = git(other, "rev-parse", "HEAD").strip()
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    async with gateway(configured) as (daemon, chat):
        await run(chat, PLANTS[plant].format(other=other, data=data, commit=commit))
        answers = await use_git(daemon, chat)
        answers += await run(chat, "git log -p -3", "git show x", f"cat {other}/secret")
    assert CANARY not in answers
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before


async def test_a_repository_that_becomes_a_link_is_refused(tmp_path: Path) -> None:
    repo = tmp_path / "repos/app"
    async with gateway(with_secrets(tmp_path)) as (_, chat):
        assert "text" in await ask(chat, "write a text ;; tool read a ;; say text")
        repo.rename(tmp_path / "repos/moved")
        repo.symlink_to(tmp_path / "data")
        for text in ("run cat secret", "/diff", "/session info"):
            answer = await ask(chat, text)
            assert CANARY not in answer
        assert "can't be used" in await ask(chat, "write b text ;; say Done.")
        assert not (tmp_path / "data/b").exists()
        assert not (tmp_path / "repos/moved/b").exists(), "the program that still ran has the old folder"
        repo.unlink()
        (tmp_path / "repos/moved").rename(repo)
        assert "Done." in await ask(chat, "write b text ;; say Done.")
