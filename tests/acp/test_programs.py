"""Where programs are found, and what of the machine their sandbox must contain. All trees are fakes."""

import json
from pathlib import Path

import pytest

from config import AgentSettings
from gateway.acp.programs import AgentProgram, ProgramMissing, find_program

NODE_SCRIPT = "#!/usr/bin/env node\nconsole.log(1)\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def make(path: Path, text: str = "\x7fELF", *, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def link(path: Path, target: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def package(
    modules: Path, name: str, script: str = "index.js", text: str = NODE_SCRIPT, version: str = "1.2.3"
) -> Path:
    make(modules / name / "package.json", json.dumps({"name": name, "version": version}), mode=0o644)
    return make(modules / name / script, text)


def find(command: str | list[str], *folders: Path, private: tuple[Path, ...] = (), **more: object) -> AgentProgram:
    words = [command] if isinstance(command, str) else command
    settings = AgentSettings.model_validate({"backend": "acp", "command": words, **more})
    return find_program(settings, ":".join(map(str, folders)), private=private)


def test_a_program_of_the_system_needs_nothing() -> None:
    assert find(["sh", "-c", "true"], Path("/usr/bin")) == AgentProgram(
        argv=(str(Path("/usr/bin/sh").resolve()), "-c", "true")
    )


def test_a_global_npm_package_needs_its_node_modules_and_its_node(home: Path) -> None:
    """The layout of nvm. Node's whole installation is readable, so that the agent can use npm."""
    prefix = home / ".nvm" / "versions" / "node" / "v22.1.0"
    node = make(prefix / "bin" / "node")
    (prefix / "include" / "node").mkdir(parents=True)
    script = package(prefix / "lib" / "node_modules", "@google/gemini-cli", "bundle/gemini.js")
    link(prefix / "bin" / "gemini", script)
    assert find(["gemini", "--acp"], prefix / "bin", Path("/usr/bin")) == AgentProgram(
        argv=(str(script), "--acp"), path=(str(node.parent),), readable=(prefix,), version="1.2.3"
    )


def test_node_is_found_beside_a_program_that_is_named_by_its_path(home: Path) -> None:
    """A systemd unit has a PATH without the folders of version managers."""
    prefix = home / ".nvm" / "versions" / "node" / "v22.1.0"
    node = make(prefix / "bin" / "node")
    link(prefix / "bin" / "gemini", package(prefix / "lib" / "node_modules", "gemini"))
    other = make(home / "other" / "node")
    found = find(str(prefix / "bin" / "gemini"), other.parent)
    assert found.path == (str(node.parent),)
    assert set(found.readable) == {node.parent, prefix / "lib" / "node_modules"}


def test_a_link_of_fnm_is_followed(home: Path) -> None:
    installation = home / "fnm" / "node-versions" / "v22" / "installation"
    node = make(installation / "bin" / "node")
    (installation / "include" / "node").mkdir(parents=True)
    link(installation / "bin" / "gemini", package(installation / "lib" / "node_modules", "gemini"))
    shell = link(home / "run" / "fnm_multishells" / "12", installation)
    found = find("gemini", shell / "bin")
    assert found.path == (str(node.parent),)
    assert found.readable == (installation,)


def test_a_shim_of_volta_is_followed(home: Path) -> None:
    volta = home / ".volta"
    image = volta / "tools" / "image"
    link(volta / "bin" / "gemini", make(volta / "bin" / "volta-shim"))
    node = make(image / "node" / "22.1.0" / "bin" / "node")
    script = package(image / "packages" / "@google/gemini-cli" / "lib" / "node_modules", "@google/gemini-cli")
    link(image / "packages" / "@google/gemini-cli" / "bin" / "gemini", script)
    entry = {"name": "gemini", "package": "@google/gemini-cli", "platform": {"node": "22.1.0"}}
    make(volta / "tools" / "user" / "bins" / "gemini.json", json.dumps(entry))
    found = find("gemini", volta / "bin")
    assert found.argv == (str(script),)
    assert found.path == (str(node.parent),)
    assert set(found.readable) == {node.parent, script.parents[2]}


@pytest.mark.parametrize("manager", ["mise", "volta-shim", "snap"])
def test_a_shim_that_needs_files_of_the_home_is_refused(home: Path, manager: str) -> None:
    link(home / "shims" / "gemini", make(home / "bin" / manager))
    with pytest.raises(ProgramMissing, match=r"belongs to the version manager .* Set `command` to the full path"):
        find("gemini", home / "shims")


def test_a_project_with_its_own_node_modules_needs_all_of_them(home: Path) -> None:
    """Native programs are in packages of their own, next to the one that starts them."""
    modules = home / "tools" / "node_modules"
    script = package(modules, "@agentclientprotocol/codex-acp", "dist/index.js")
    package(modules, "@agentclientprotocol/codex-acp/node_modules/@openai/codex-linux-x64", "codex")
    link(modules / ".bin" / "codex-acp", script)
    node = make(home / "node" / "node")
    found = find("codex-acp", modules / ".bin", node.parent)
    assert set(found.readable) == {modules, node.parent}


def test_a_nested_package_needs_the_outermost_node_modules(home: Path) -> None:
    script = package(home / "tools" / "node_modules" / "outer" / "node_modules", "inner", text="\x7fELF")
    assert find(str(script)).readable == (home / "tools" / "node_modules",)


def test_a_script_of_pnpm_is_followed_to_its_store(home: Path) -> None:
    pnpm = home / ".local" / "share" / "pnpm"
    store = pnpm / "global" / "5" / ".pnpm"
    script = package(store / "gemini@1" / "node_modules", "gemini", "cli.mjs")
    link(pnpm / "global" / "5" / "node_modules" / "gemini", script.parent)
    shim = '#!/bin/sh\nbasedir=$(dirname "$0")\nexec node  "$basedir/global/5/node_modules/gemini/cli.mjs" "$@"\n'
    make(pnpm / "gemini", shim)
    make(home / "node" / "node")
    found = find("gemini", pnpm, home / "node")
    assert found.argv == (str(script),)
    assert set(found.readable) == {store, home / "node"}


def test_a_python_venv_needs_itself_and_the_python_it_is_made_from(home: Path) -> None:
    base = home / ".pyenv" / "versions" / "3.13"
    python = make(base / "bin" / "python3.13")
    make(base / "lib" / "python3.13" / "os.py", "")
    venv = home / ".local" / "pipx" / "venvs" / "agent"
    make(venv / "pyvenv.cfg", f"home = {base}/bin\ninclude-system-site-packages = false\n")
    link(venv / "bin" / "python", python)
    script = make(venv / "bin" / "agent", f"#!{venv}/bin/python\n")
    link(home / ".local" / "bin" / "agent", script)
    found = find("agent", home / ".local" / "bin")
    assert found.argv == (str(venv / "bin" / "python"), str(script))
    assert set(found.readable) == {venv, base}


def test_links_on_the_way_to_a_python_stay_usable(home: Path) -> None:
    """A new version of uv links a venv to a folder without the last number of the version, which is a link."""
    pythons = home / "uv" / "python"
    make(pythons / "3.13.2" / "bin" / "python3")
    link(pythons / "3.13", Path("3.13.2"))
    venv = home / "stored" / "venv"
    make(venv / "pyvenv.cfg", f"home = {pythons}/3.13/bin\n")
    link(venv / "bin" / "python", pythons / "3.13" / "bin" / "python3")
    link(home / "venv", venv)
    script = make(venv / "bin" / "agent", f"#!{home}/venv/bin/python -I\n")
    found = find(str(home / "venv" / "bin" / "agent"))
    assert found.argv == (str(venv / "bin" / "python"), "-I", str(script))
    assert set(found.readable) == {venv, pythons}


def test_a_package_outside_of_node_modules_needs_its_dependencies(home: Path) -> None:
    project = home / "src" / "agent"
    make(project / "package.json", json.dumps({"version": "2.0.0"}), mode=0o644)
    script = make(project / "dist" / "cli.js", "#!/usr/bin/env sh\n")
    link(home / "lib" / "node_modules" / "agent", project)
    link(home / "bin" / "agent", home / "lib" / "node_modules" / "agent" / "dist" / "cli.js")
    found = find("agent", home / "bin", Path("/usr/bin"))
    assert found == AgentProgram(argv=(str(script),), readable=(project,), version="2.0.0")


def test_a_venv_of_the_systems_python_needs_only_itself(home: Path) -> None:
    venv = home / "venv"
    make(venv / "pyvenv.cfg", "home = /usr/bin\n")
    link(venv / "bin" / "python", Path("/usr/bin/env").resolve())
    make(venv / "bin" / "agent", f"#!{venv}/bin/python\n")
    assert find(str(venv / "bin" / "agent")).readable == (venv,)


def test_a_native_program_needs_its_folder(home: Path) -> None:
    program = make(home / ".opencode" / "bin" / "opencode")
    link(home / ".local" / "bin" / "opencode", program)
    found = find("opencode", home / ".local" / "bin")
    assert found == AgentProgram(argv=(str(program),), readable=(program.parent,))


def test_of_a_script_in_the_home_only_the_file_is_readable(home: Path) -> None:
    script = make(home / "agent.sh", "#!/bin/sh\nexec true\n")
    assert find(str(script)).readable == (script,)


def test_a_whole_home_is_never_readable(home: Path) -> None:
    make(home / "pyvenv.cfg", "home = /usr/bin\n")
    agent = make(home / "bin" / "agent")
    with pytest.raises(ProgramMissing, match=f"needs the folder {home} .*`sandbox.readable`"):
        find(str(agent))
    allowed = {"readable": [str(home / "bin"), str(home / "lib")]}
    assert find(str(agent), sandbox=allowed).readable == ()


def test_the_data_directory_is_never_readable(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "tools" / "node_modules" / ".data"
    data.mkdir(parents=True)
    script = package(tmp_path / "tools" / "node_modules", "agent", text="\x7fELF")
    with pytest.raises(ProgramMissing, match="contains private files"):
        find(str(script), private=(data,))
    inside = make(data / "workspace" / "agent")
    with pytest.raises(ProgramMissing, match="where agents can change files"):
        find(str(inside), private=(data,))
    assert home.exists()


def test_a_program_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(ProgramMissing) as missing:
        find_program(AgentSettings.model_validate({"backend": "acp", "preset": "gemini"}), str(tmp_path))
    assert str(missing.value) == (
        f"Gemini CLI cannot be started: `gemini` is not in PATH ({tmp_path}). "
        "Install it with `npm install -g @google/gemini-cli`, or set `command` to its full path."
    )


def test_folders_of_path_that_depend_on_where_the_daemon_was_started_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "gemini")
    monkeypatch.chdir(tmp_path)
    settings = AgentSettings.model_validate({"backend": "acp", "preset": "gemini"})
    for path in ("", ".", ":", "bin:."):
        with pytest.raises(ProgramMissing, match="is not in PATH"):
            find_program(settings, path)


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable", "broken link", "loop"])
def test_a_path_that_leads_to_no_program_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "agent"
    if kind == "folder":
        path.mkdir()
    elif kind == "not executable":
        make(path, mode=0o644)
    elif kind == "broken link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "loop":
        path.symlink_to(path)
    with pytest.raises(ProgramMissing, match=r"does not exist or cannot be executed\. Install it, or correct"):
        find(str(path))


def test_a_missing_interpreter_is_named(home: Path) -> None:
    make(home / "bin" / "agent", "#!/usr/bin/env nowhere-interpreter\n")
    with pytest.raises(ProgramMissing, match="needs `nowhere-interpreter`, which is not in PATH"):
        find("agent", home / "bin")
    make(home / "bin" / "other", "#!/nowhere/python\n")
    with pytest.raises(ProgramMissing, match="interpreter /nowhere/python does not exist"):
        find("other", home / "bin")


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/env -S node --no-warnings", "#!/usr/bin/env -S A=b node", "#! /usr/bin/env node"]
)
def test_flags_of_env_are_not_the_interpreter(home: Path, line: str) -> None:
    node = make(home / "node" / "node")
    make(home / "bin" / "agent", f"{line}\n")
    assert find("agent", home / "bin", node.parent).path == (str(node.parent),)


def test_an_interpreter_with_another_name_keeps_its_link(home: Path) -> None:
    """`node` may be a link to `nodejs`. The script looks for `node`."""
    link(home / "links" / "node", make(home / "real" / "nodejs"))
    make(home / "bin" / "agent", NODE_SCRIPT)
    found = find("agent", home / "bin", home / "links")
    assert found.path == (str(home / "links"),)
    assert set(found.readable) == {home / "bin", home / "links", home / "real"}


def test_homebrew_is_readable_as_a_whole(home: Path) -> None:
    brew = home / "linuxbrew"
    script = package(brew / "Cellar" / "gemini-cli" / "1" / "libexec" / "lib" / "node_modules", "gemini")
    link(brew / "bin" / "gemini", script)
    link(brew / "bin" / "node", make(brew / "Cellar" / "node" / "22" / "bin" / "node"))
    found = find("gemini", brew / "bin")
    assert found.readable == (brew,)


def test_a_package_without_a_readable_version_has_none(home: Path) -> None:
    script = package(home / "node_modules", "agent", text="\x7fELF")
    (script.parent / "package.json").write_text("{broken")
    make(home / "node_modules" / "package.json", json.dumps({"version": "9"}))
    assert find(str(script)).version is None
