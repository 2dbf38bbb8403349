import json
from pathlib import Path

import pytest

from tests.daemon_process import gatehouse, running, write_config

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = 0
[agents.helper]
[[repos]]
name = "website"
path = "{home}/website"
"""


def home_of(folder: Path) -> Path:
    write_config(folder, CONFIG)
    (folder / "website").mkdir()
    return folder


def create(home: Path, *options: str) -> str:
    done = gatehouse("token", "create", *options, home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_tokens_are_created_listed_and_revoked_with_and_without_a_running_daemon(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    assert "There are no API tokens" in gatehouse("token", home=home).stdout
    bound = ("--agent", "helper", "--repo", "website", "--session", "trip", "--expires", "30d")
    first = create(home, "nightly build", "--scope", "read,prompt", *bound)
    with running(home) as daemon:
        second = create(home, "phone", "--scope", "manage", "--scope", "admin,manage")
        listed = json.loads(gatehouse("token", "list", "--json", home=home).stdout)["tokens"]
        assert [(each["name"], each["scopes"]) for each in listed] == [
            ("nightly build", ["read", "prompt"]),
            ("phone", ["manage", "admin"]),
        ]
        assert (listed[0]["agent"], listed[0]["repo"], listed[0]["session"]) == ("helper", "website", "trip")
        table = gatehouse("token", "list", home=home).stdout
        assert "agent helper, repo website, session trip" in table
        assert "never" in table
        revoked = gatehouse("token", "revoke", listed[1]["id"], home=home)
        assert revoked.stdout == f"Revoked the token phone ({listed[1]['id']}).\n"
        again = gatehouse("token", "revoke", listed[1]["id"], home=home)
        assert (again.returncode, "No token has this id" in again.stderr) == (1, True)
        text = json.dumps(daemon.log) + table + json.dumps(listed)
    for secret in (first, second):
        assert secret.startswith("gh_")
        assert secret.split("_", 2)[2] not in text
    assert (
        f"Revoked the token nightly build ({listed[0]['id']})"
        in gatehouse("token", "revoke", listed[0]["id"], home=home).stdout
    )
    assert json.loads(gatehouse("token", "--json", home=home).stdout) == {"tokens": []}


def test_the_secret_is_in_the_json_once(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    options = ("ci", "--scope", "read", "--role", "guest", "--json")
    made = json.loads(gatehouse("token", "create", *options, home=home).stdout)
    assert made["created"]["role"] == "guest"
    assert made["secret"].startswith(f"gh_{made['created']['id']}_")
    assert "digest" not in made["created"]


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("create", "ci"), 2, "--scope"),
        (("create", "--scope", "read"), 2, "name"),
        (("create", "ci", "--scope", "fly"), 2, "read, prompt, manage, admin"),
        (("create", "ci", "--scope", ","), 2, "read, prompt, manage, admin"),
        (("create", "ci", "--scope", "read", "--expires", "soon"), 2, "12h"),
        (("create", "ci", "--scope", "read", "--expires", "200y"), 1, "100 years"),
        (("create", "ci", "--scope", "read", "--expires", "0d"), 1, "100 years"),
        (("create", "ci", "--scope", "read", "--agent", "nobody"), 1, "no agent called `nobody`"),
        (("create", "ci", "--scope", "read", "--repo", "nowhere"), 1, "no repository called `nowhere`"),
        (("create", "ci", "--scope", "read", "--role", "boss"), 1, "no role called `boss`"),
        (("create", "ci", "--scope", "admin", "--role", "guest"), 1, "is an owner"),
        (("create", "ci", "--scope", "read", "--role", "owner"), 1, "Only a token with the scope admin"),
        (("create", " ", "--scope", "read"), 1, "needs a name"),
        (("revoke",), 2, "ID"),
        (("revoke", "0123456789"), 1, "No token has this id"),
        (("destroy",), 2, "create"),
    ],
)
def test_wrong_usage_gets_a_sentence(tmp_path: Path, options: tuple[str, ...], code: int, sentence: str) -> None:
    done = gatehouse("token", *options, home=home_of(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
