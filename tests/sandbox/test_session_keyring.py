"""A key of the daemon's session cannot be read by a program that has its own session keyring."""

import os
import subprocess
import sys

import pytest

from gateway.sandbox.bubblewrap import with_own_keyring

ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine, (0, 0))
HOLDER = f"""
import ctypes, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall({KEYCTL}, 1, None)  # A session keyring for this test alone.
key = libc.syscall({ADD_KEY}, b"user", b"canary", b"secret", 6, -3)
if key < 0:
    sys.exit("no keyrings")
reader = "import ctypes; b = ctypes.create_string_buffer(9); " \\
    f"ctypes.CDLL(None).syscall({KEYCTL}, 11, {{key}}, b, 9); print(b.value)"
for prefix in [], sys.argv[1:]:
    print(subprocess.run([*prefix, sys.executable, "-c", reader], capture_output=True, text=True).stdout, end="")
"""


@pytest.mark.skipif(not ADD_KEY, reason="the numbers are those of other machines")
def test_the_keys_of_the_session_cannot_be_read() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HOLDER, *with_own_keyring([])], capture_output=True, text=True, check=False
    )
    if "no keyrings" in ran.stderr:
        pytest.skip("the kernel has no keyrings, or forbids them here")
    assert ran.stdout.splitlines() == ["b'secret'", "b''"], ran.stderr
