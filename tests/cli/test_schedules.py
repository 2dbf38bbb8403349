import json
from pathlib import Path

import pytest

from tests.daemon_process import gatehouse, running, write_config

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = 0
[[schedules]]
name = "nightly"
cron = "0 3 * * *"
chat = "web:owner"
prompt = "Sum up the day"
"""


def test_schedules_are_listed_shown_and_paused_with_and_without_a_running_daemon(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    assert "There are no schedules" in gatehouse("schedules", home=tmp_path).stdout
    with running(tmp_path, CONFIG):
        # The gateway stores them right after it is ready.
        listed = ""
        for _ in range(100):
            listed = gatehouse("schedules", home=tmp_path).stdout
            if "config-nightly  web:owner  active" in listed:
                break
        else:
            pytest.fail(listed)
        paused = gatehouse("schedules", "pause", "config-nightly", home=tmp_path)
        assert paused.stdout == "Paused the schedule nightly.\n"
        assert "has run" not in gatehouse("schedules", "show", "config-nightly", home=tmp_path).stdout
        assert "1 paused" in gatehouse("status", home=tmp_path).stdout
        refused = gatehouse("schedules", "delete", "config-nightly", home=tmp_path)
        assert (refused.returncode, "comes from the configuration" in refused.stderr) == (1, True)
        unknown = gatehouse("schedules", "run", "nope", home=tmp_path)
        assert (unknown.returncode, "no schedule with this id" in unknown.stderr) == (1, True)
    shown = json.loads(gatehouse("schedules", "show", "config-nightly", "--json", home=tmp_path).stdout)
    assert (shown["schedule"]["state"], shown["runs"]) == ("paused", [])
    assert gatehouse("schedules", "resume", "config-nightly", home=tmp_path).stdout == "Resumed the schedule nightly.\n"
    assert "active" in gatehouse("schedules", home=tmp_path).stdout
    wrong = gatehouse("schedules", "pause", home=tmp_path)
    assert (wrong.returncode, "ACTION ID" in wrong.stderr) == (2, True)
