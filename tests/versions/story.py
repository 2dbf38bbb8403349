"""What happens to a gateway whose data becomes a fixture: the people, what they say, and how it ends.

`make.py` plays this with a release, and `test_versions.py` expects it in the data. A change here needs all fixtures to
be made again, so new parts are added for new versions only.
"""

from tests.channels.telegram.bot_api import ADA, BOB, GROUP, TOKEN

__all__ = ["ADA", "BOB", "CY", "DORA", "GROUP", "TOKEN"]

CY = {"id": 88, "is_bot": False, "first_name": "Cy"}
"""Talks to an agent whose model never answers: the gateway is killed in his turn."""
DORA = {"id": 99, "is_bot": False, "first_name": "Dora"}
"""Waits for an approval."""

NOTE = "the key is under the mat"
TITLES = ("Garden plans", "Travel plans", "Winter plans", "Kitchen plans")
"""The sessions that Ada starts, one after the other. The limit is three, so the first ones are archived."""
BACKLOG_LIMIT = 3
"""Of versions that have an archive. Earlier ones delete sessions beyond the limit."""
FILE = "shopping-list.txt"
FILE_CONTENT = b"bread, milk, eggs\n"
FIRST = "The kitchen gets a red door."
"""What Ada says first in her last session."""
UNDELIVERED = "what did I say first"
"""What she asks last: the answer quotes `FIRST`, and is not delivered."""
INTERRUPTED = "Please count the stars."
"""What Cy says, and gets no answer to."""
SCHEDULE = '/schedule add "0 8 * * *" Look at the garden'
TERMINAL = "my name is Tess"
API_TOKEN = "fixture"


def config(data_dir: str, api_base: str, model_url: str = "", *, backlog_limit: int = 20) -> str:
    """Return the configuration. Without the address of a model, Cy talks to the offline responder as everyone does."""
    model = f'provider = "slow"\nmodel = "m"\n[providers.slow]\nkind = "openai"\nbase_url = "{model_url}/v1"'
    return f"""
[gateway]
data_dir = "{data_dir}"
timezone = "UTC"
flush_interval = 0.5
[http]
port = 0
[session]
backlog_limit = {backlog_limit}
[agents.main]
[agents.counter]
{model if model_url else ""}
[[bindings]]
agent = "counter"
channel = "telegram"
peer = {CY["id"]}
[channels.telegram]
token = "{TOKEN}"
api_base = "{api_base}"
allow = [{ADA["id"]}, {CY["id"]}]
group_allow = [{GROUP["id"]}]
"""
