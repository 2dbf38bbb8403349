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
    assert warning == f"repos[0].path: {expected}, so /workspace does not offer `website`"


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who is not root: root can read everything")
def test_a_repo_that_this_user_may_not_read_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    path = write_config(tmp_path, '[[repos]]\nname = "website"\npath = "closed"\n')
    (warning,) = load(path, {}).warnings
    assert "this user may not read the folder" in warning
