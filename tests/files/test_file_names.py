import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.files.identify import MAX_NAME_BYTES, safe_name
from gateway.text.plain import in_bytes


@pytest.mark.parametrize(
    ("claimed", "name"),
    [
        ("report.pdf", "report.pdf"),
        ("../x", "_x"),
        ("..\\..\\boot.ini", "_.._boot.ini"),
        ("/etc/passwd", "_etc_passwd"),
        (".bashrc", "bashrc"),
        ("...", "file"),
        ("", "file"),
        ('a"b\r\nc: d.txt', "a_b_c_d.txt"),
        ("Übersicht  2026.xlsx", "Übersicht_2026.xlsx"),
        (" 報告 v2+final.pdf ", "報告_v2+final.pdf"),
        ("हिन्दी 🎉.txt", "हिन्दी_🎉.txt"),
        ("$(rm -rf ~);`id`&x|y.sh", "_rm_-rf_id_x_y.sh"),
        ("-rf", "rf"),
        ("-.-rf", "rf"),
        ("it's {a,b} [c] !d #e ^f.txt", "it_s_a,b_c_d_e_f.txt"),
        ("a\u037eb\u1fefc", "a_b_c"),
        ("x" * 300 + ".jpeg", "x" * (MAX_NAME_BYTES - 5) + ".jpeg"),
    ],
)
def test_a_claimed_name_becomes_a_safe_name(claimed: str, name: str) -> None:
    assert safe_name(claimed) == name


@given(st.text())
def test_any_claimed_name_becomes_one_visible_path_component(claimed: str) -> None:
    name = safe_name(claimed)
    assert name
    assert not name.startswith((".", "-"))
    assert not set(name) & set('/\\:"\r\n\0')
    assert shlex.quote(name).strip("'") == name
    assert re.fullmatch(r"[\w.+@,=-]+", name, re.ASCII) or not name.isascii()
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "claimed",
    ["x;touch pwned", "$(touch pwned)", "`touch pwned`", "a\ntouch pwned", "*", "~root", "a&&touch pwned", "-c"],
)
def test_a_shell_takes_a_safe_name_as_one_word(claimed: str, tmp_path: Path) -> None:
    name = safe_name(claimed)
    command = f"printf '%s|' {name}"
    said = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said == f"{name}|"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (20_000_000, "20 MB"), (2_147_483_648, "2.1 GB")],
)
def test_sizes_are_formatted_for_people(size: int, said: str) -> None:
    assert in_bytes(size) == said
