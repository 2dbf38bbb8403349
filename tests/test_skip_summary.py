import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
@pytest.mark.skipif(True, reason="the moon is not full")
def test_marked(number): ...

def test_at_run_time():
    pytest.skip("the sea is not calm.")

def test_that_runs(): ...
"""
ROOT = Path(__file__).parents[1]


def test_the_last_lines_give_the_number_of_skipped_tests_for_each_reason(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.skip_summary",
        "-n",
        "2",
        f"--rootdir={tmp_path}",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *_, first, second, hint, closing = done.stdout.splitlines()
    assert (first, second) == ("    3  the moon is not full", "    1  the sea is not calm")
    assert "-rs" in hint
    assert re.fullmatch(r"=+ 1 passed, 4 skipped in [\d.]+s =+", closing)
