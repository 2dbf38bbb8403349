import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.data_dir import DataDirLock, prepare_data_dir
from gateway.errors import CannotStart


def test_the_error_names_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    with (
        DataDirLock(tmp_path),
        pytest.raises(CannotStart, match=f"in use by process {os.getpid()}"),
        DataDirLock(tmp_path),
    ):
        pass


def test_the_lock_is_released_at_the_end(tmp_path: Path) -> None:
    for _ in range(2):
        with DataDirLock(tmp_path):
            pass


def test_a_symlinked_path_is_the_same_directory(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with DataDirLock(real), pytest.raises(CannotStart), DataDirLock(tmp_path / "link"):
        pass


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from gateway.data_dir import DataDirLock\n"
        "with DataDirLock(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CannotStart, match=str(holder.pid)), DataDirLock(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with DataDirLock(tmp_path):
        pass


def test_the_directory_is_created_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        prepare_data_dir(tmp_path / "new")
        with DataDirLock(tmp_path / "new"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "gatehouse.lock").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_created_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CannotStart, match=r"gateway\.data_dir"):
        prepare_data_dir(tmp_path / "file" / "data")


_LEAVES_THE_LOCK = """
import os, sys
from pathlib import Path
from gateway.data_dir import DataDirLock
DataDirLock(Path(sys.argv[1])).__enter__()
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
os._exit(0)
"""


def test_a_lock_that_a_killed_process_has_left_to_a_child_is_waited_for(tmp_path: Path) -> None:
    """Between fork and exec, a child has all descriptors of its parent."""
    with subprocess.Popen([sys.executable, "-c", _LEAVES_THE_LOCK, str(tmp_path)], stdin=subprocess.PIPE) as parent:
        assert parent.wait(60) == 0
        assert parent.stdin
        threading.Timer(0.1, parent.stdin.close).start()
        with DataDirLock(tmp_path):
            pass
