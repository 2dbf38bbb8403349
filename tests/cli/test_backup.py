"""`gatehouse backup` and `restore` as processes, with a daemon that runs and without one."""

from pathlib import Path

from tests.daemon_process import DaemonProcess, gatehouse, write_config


def ask(home: Path, *words: str) -> str:
    result = gatehouse("chat", "--once", *words, home=home)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_backup_is_restored_on_another_machine(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for home in (old, new):
        home.mkdir()
        write_config(home)
    archive = tmp_path / "backup.tar.gz"
    with DaemonProcess(old).ready() as daemon:
        ask(old, "my name is Ada")
        made = gatehouse("backup", str(archive), home=old)
        assert made.returncode == 0, made.stderr
        assert "without the configuration" in made.stdout
        again = gatehouse("backup", str(archive), home=old)
        assert again.returncode == 1
        assert "--force" in again.stderr
        refused = gatehouse("restore", str(archive), "--replace", home=old)
        assert refused.returncode == 78
        assert "in use" in refused.stderr
        daemon.process.terminate()
        assert daemon.process.wait(60) == 0
    assert archive.stat().st_mode & 0o777 == 0o600
    stopped = gatehouse("backup", str(archive), "--force", "--with-secrets", home=old)
    assert stopped.returncode == 0, stopped.stderr
    moved = gatehouse("restore", str(archive), home=new)
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout.startswith("Restored 1 session into")
    assert "gatehouse.toml" in moved.stdout
    with DaemonProcess(new).ready():
        assert "Ada" in ask(new, "what is my name?")
    full = gatehouse("restore", str(archive), home=new)
    assert full.returncode == 1
    assert "--replace" in full.stderr
