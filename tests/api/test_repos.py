"""Programs and coding agents: which repository a session gets, in the API and for OpenAI clients."""

from pathlib import Path

import pytest

from gateway.contract import TokenScope
from tests.api.harness import Api, api
from tests.repos.harness import coding_settings, make_repo, needs_git

pytestmark = needs_git


@pytest.fixture
def repos(tmp_path: Path) -> tuple[Path, Path]:
    return make_repo(tmp_path / "app"), make_repo(tmp_path / "site")


async def refused(program: Api, **body: object) -> str:
    status, problem = await program.call("POST", "/api/sessions", dict(body))
    assert status == 422, problem
    return str(problem["detail"])


async def test_a_session_of_a_coding_agent_has_a_repository(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with api(coding_settings(tmp_path, *repos)) as program:
        detail = await refused(program, agent="coder")
        assert "The agent `coder` works in a repository, and has no default. Name one as `repoId`." in detail
        assert (await program.start(agent="coder", repoId="site"))["repoId"] == "site"
        assert (await program.start(agent="main"))["repoId"] is None
        bound = await program.token_for(TokenScope.PROMPT, repo="app")
        assert (await bound.start(agent="coder"))["repoId"] == "app"


async def test_the_default_of_the_agent_is_used(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with api(coding_settings(tmp_path, *repos, coder={"repos": ["site"]})) as program:
        session = await program.start(agent="coder")
        assert session["repoId"] == "site"
        (found,) = [each for scope in program.daemon.sessions.scopes() for each in program.daemon.sessions.list(scope)]
        assert (found.repo, found.workspace) == ("site", "site")


async def test_a_repository_has_a_name_for_people(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    named = [{"id": "app", "name": "The app", "path": repos[0]}]
    async with api(coding_settings(tmp_path, repos=named)) as program:
        _, listed = await program.call("GET", "/api/repos")
        assert listed["repos"] == [{"id": "app", "name": "The app"}]


async def test_repositories_that_sessions_cannot_use_are_listed_with_the_reason(
    tmp_path: Path, repos: tuple[Path, Path]
) -> None:
    plain, outside = tmp_path / "root/plain", repos[0]
    plain.mkdir(parents=True)
    configured = coding_settings(tmp_path, plain, outside)
    rooted = configured.model_copy(
        update={"gateway": configured.gateway.model_copy(update={"repo_root": tmp_path / "root"})}
    )
    async with api(rooted) as program:
        _, listed = await program.call("GET", "/api/repos")
        assert [each["trouble"] for each in listed["repos"]] == [
            f"the folder {plain} is not a git work tree. To fix that, run `git init` there, or clone into it",
            (
                f"the folder {outside} is outside {tmp_path}/root. To fix that, move it there, or change "
                "gateway.repo_root ($AGENT_WORKSPACE_ROOT overrides it)"
            ),
        ]
        # Only coding agents need a git work tree.
        session = await program.start(agent="main", repoId="plain")
        _, found = await program.call("GET", f"/api/sessions/{session['id']}")
        assert "trouble" not in found["repo"]
        bound = await program.token_for(TokenScope.READ, agent="main")
        _, listed = await bound.call("GET", "/api/repos")
        assert "trouble" not in listed["repos"][0]


async def test_a_coding_agent_needs_a_git_work_tree(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    async with api(coding_settings(tmp_path, plain)) as program:
        assert "is not a git work tree" in await refused(program, agent="coder")
        assert (await program.start(agent="main", repoId="plain"))["repoId"] == "plain"
        assert repos


async def test_a_session_whose_repository_is_gone_is_not_resumed(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    configured = coding_settings(tmp_path, *repos)
    async with api(configured) as program:
        session = await program.start(agent="coder", repoId="app")
        await program.call("POST", f"/api/sessions/{session['id']}/complete")
        program.daemon.live.settings = configured.model_copy(update={"repos": configured.repos[1:]})
        status, problem = await program.call("POST", f"/api/sessions/{session['id']}/resume")
        assert (status, problem["detail"]) == (409, "The repository app can't be used: it is not configured.")


def completion(model: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "fix it"}]}


async def test_an_openai_client_needs_a_session_with_a_coding_agent(tmp_path: Path, repos: tuple[Path, Path]) -> None:
    async with api(coding_settings(tmp_path, *repos)) as program:
        status, answer = await program.call("POST", "/v1/chat/completions", completion("coder"))
        assert status == 400
        assert "works in a repository and needs a session" in answer["error"]["message"]
        status, answer = await program.call("POST", "/v1/chat/completions", completion("coder@bug"))
        assert status == 400
        assert "works in a repository, and has no default" in answer["error"]["message"]


async def test_the_session_of_an_openai_client_works_in_the_default_repository(
    tmp_path: Path, repos: tuple[Path, Path]
) -> None:
    async with api(coding_settings(tmp_path, *repos, coder={"repos": ["site"]})) as program:
        await program.call("POST", "/v1/chat/completions", completion("coder@bug"))
        (found,) = [each for scope in program.daemon.sessions.scopes() for each in program.daemon.sessions.list(scope)]
        assert (found.agent, found.repo, found.workspace) == ("coder", "site", "site")
