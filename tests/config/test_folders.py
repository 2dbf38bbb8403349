"""Folders that the tools of agents can access: `gateway.workspace_root` and `[[repos]]`."""

import os
from pathlib import Path

import pytest

from config import load
from tests.config.harness import problems_of, write_config

DATA = '[gateway]\ndata_dir = "data"\n'


@pytest.mark.parametrize("path", [".", "data", "data/sessions", "data/../data/files", "link", "link/memory", "/"])
def test_no_folder_for_tools_may_overlap_with_the_data_directory(path: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    repo = write_config(tmp_path, f'{DATA}[[repos]]\nname = "all"\npath = "{path}"\n')
    assert "overlaps with gateway.data_dir" in problems_of(repo)["repos[0].path"].message
    root = write_config(tmp_path, f'{DATA}workspace_root = "{path}"\n')
    assert "overlaps with gateway.data_dir" in problems_of(root)["gateway.workspace_root"].message


def test_the_workspace_in_the_data_directory_must_be_the_default(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'{DATA}workspace_root = "data/workspace"\n')
    assert load(path, {}).settings.gateway.workspace_root == tmp_path / "data/workspace"
    path = write_config(tmp_path, f'{DATA}workspace_root = "data/workspaces"\n')
    assert "gateway.workspace_root" in problems_of(path)


@pytest.mark.parametrize(("target", "is_refused"), [("elsewhere", False), ("data/sessions", True), (".", True)])
def test_a_link_at_the_default_workspace_is_followed(tmp_path: Path, target: str, is_refused: bool) -> None:  # noqa: FBT001 - a parameter.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "workspace").symlink_to(tmp_path / target)
    path = write_config(tmp_path, DATA)
    if is_refused:
        assert "gateway.workspace_root" in problems_of(path)
    else:
        assert load(path, {}).warnings == ()


@pytest.mark.parametrize("path", [".", "agents", "agents/main.private", "agents/main.private/someone"])
def test_a_repo_with_private_workspaces_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "here").mkdir()
    gateway = f'[gateway]\ndata_dir = "{tmp_path}/data"\nworkspace_root = "agents"\n'
    config = write_config(tmp_path / "here", f'{gateway}[[repos]]\nname = "all"\npath = "{path}"\n')
    assert "contains private workspaces" in problems_of(config)["repos[0].path"].message


def test_a_repo_may_be_a_shared_workspace(tmp_path: Path) -> None:
    (tmp_path / "here/agents/main").mkdir(parents=True)
    gateway = f'[gateway]\ndata_dir = "{tmp_path}/data"\nworkspace_root = "agents"\n'
    config = write_config(tmp_path / "here", f'{gateway}[[repos]]\nname = "old"\npath = "agents/main"\n')
    assert load(config).settings.repos


def test_the_path_of_a_repo_is_absolute_and_has_no_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = write_config(tmp_path, '[[repos]]\nname = "a"\npath = "x/../link"\n')
    loaded = load(path, {})
    assert loaded.settings.repos[0].path == tmp_path / "real"
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("repo", "trouble"),
    [
        ("gone", "the folder {folder}/gone does not exist"),
        ("file", "{folder}/file is not a folder"),
        ("file/inside", "the folder {folder}/file/inside does not exist"),
        ("loop", "the folder {folder}/loop cannot be used: too many levels of symbolic links"),
    ],
)
def test_a_repo_that_cannot_be_used_causes_a_warning(tmp_path: Path, repo: str, trouble: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    path = write_config(tmp_path, f'[[repos]]\nname = "website"\npath = "{repo}"\n')
    (warning,) = load(path, {}).warnings
    expected = trouble.format(folder=tmp_path)
    assert (
        warning
        == f"repos[0].path: {expected}, so /workspace does not offer `website`: restore the folder, or correct the path"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who is not root: root can read everything")
def test_a_repo_that_this_user_may_not_read_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    path = write_config(tmp_path, '[[repos]]\nname = "website"\npath = "closed"\n')
    (warning,) = load(path, {}).warnings
    assert "this user may not read the folder" in warning


CODER = '[agents.coder]\nbackend = "acp"\ncommand = ["agent"]\n'


def test_a_repo_has_an_id_and_a_name_and_each_defaults_to_the_other(tmp_path: Path) -> None:
    text = '[[repos]]\nname = "old"\npath = "a"\n[[repos]]\nid = "new"\nname = "The new one"\npath = "b"\n'
    repos = load(write_config(tmp_path, text + '[[repos]]\nid = "short"\npath = "c"\n'), {}).settings.repos
    assert [(repo.id, repo.name) for repo in repos] == [("old", "old"), ("new", "The new one"), ("short", "short")]


def test_a_repo_whose_name_is_no_slug_needs_an_id(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[[repos]]\nname = "The old one"\npath = "a"\n')
    assert "must be a short name" in problems_of(path)["repos[0].id"].message


def test_an_agent_names_only_repos_that_exist(tmp_path: Path) -> None:
    repo = '[[repos]]\nid = "website"\npath = "."\n'
    problem = problems_of(write_config(tmp_path, f'{CODER}repos = ["websit"]\n{repo}'))["agents.coder.repos[0]"]
    assert (problem.message, problem.hint) == ("the repo `websit` does not exist", "did you mean `website`?")
    problem = problems_of(write_config(tmp_path, f'{CODER}repos = ["other"]\n'))["agents.coder.repos[0]"]
    assert problem.hint == "add a table [[repos]]"


@pytest.mark.parametrize(
    ("path", "warning"),
    [
        ("gone", "the folder {folder}/gone does not exist, so no session can use `app`"),
        ("plain", "the folder {folder}/plain is not a git work tree, so coding agents can't use `app`: run `git init`"),
        ("broken", "{folder}/broken/.git has no HEAD, so it is not a git repository"),
        ("linked", "{folder}/linked/.git is a link, so coding agents can't use `app`: replace the link"),
        ("pointing", "{folder}/pointing/.git does not lead to a repository that knows this work tree"),
    ],
)
def test_a_repo_that_coding_agents_cannot_use_is_named_with_the_fix(tmp_path: Path, path: str, warning: str) -> None:
    for folder in ("plain", "broken/.git", "linked", "pointing", "git"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "linked/.git").symlink_to(tmp_path / "git")
    (tmp_path / "pointing/.git").write_text(f"gitdir: {tmp_path}/git\n")
    repo = f'[[repos]]\nid = "app"\npath = "{path}"\n'
    (found,) = load(write_config(tmp_path, CODER + repo), {}).warnings
    assert found.startswith(f"repos[0].path: {warning.format(folder=tmp_path)}")
    # Other agents can work in any folder.
    warnings = load(write_config(tmp_path, repo), {}).warnings
    assert len(warnings) == (path == "gone")


def test_a_missing_home_of_a_coding_agent_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "app/.git").mkdir(parents=True)
    (tmp_path / "app/.git/HEAD").write_text("ref: refs/heads/main\n")
    path = write_config(
        tmp_path, f'{CODER}[agents.coder.sandbox]\nhome = "home"\n[[repos]]\nid = "app"\npath = "app"\n'
    )
    (warning,) = load(path, {}).warnings
    assert warning.startswith(f"agents.coder.sandbox.home: the folder {tmp_path}/home does not exist")
    (tmp_path / "home").mkdir()
    assert load(path, {}).warnings == ()


def test_a_repo_outside_the_root_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "app/.git").mkdir(parents=True)
    (tmp_path / "app/.git/HEAD").write_text("ref: refs/heads/main\n")
    repo = f'{CODER}[[repos]]\nid = "app"\npath = "app"\n[gateway]\nrepo_root = "'
    (warning,) = load(write_config(tmp_path, f'{repo}elsewhere"'), {}).warnings
    assert f"{tmp_path}/app is outside {tmp_path}/elsewhere" in warning
    assert "so coding agents can't use `app`: move it there, or change gateway.repo_root" in warning
    inside = write_config(tmp_path, f'{repo}."')
    assert load(inside, {}).warnings == ()
    (warning,) = load(inside, {"AGENT_WORKSPACE_ROOT": "/srv/src"}).warnings
    assert f"{tmp_path}/app is outside /srv/src" in warning
    assert "$AGENT_WORKSPACE_ROOT overrides it" in warning


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (".", "overlaps with gateway.data_dir"),
        ("data/skills", "overlaps with gateway.data_dir"),
        ("agents/main/skills", "agents could change their skills"),
        ("link", "agents could change their skills"),
    ],
)
def test_skills_lie_where_no_tool_can_change_them(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "link").symlink_to("agents")
    gateway = '[gateway]\ndata_dir = "data"\nworkspace_root = "agents"\n'
    config = write_config(tmp_path, f'{gateway}[skills]\nfolders = ["skills", "{path}"]\n')
    assert message in problems_of(config)["skills.folders[1]"].message
