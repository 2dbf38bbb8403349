"""A conversation with the command `llm`. Its `-c` sends the history of the conversation again."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(
        f"- model_id: gatehouse\n"
        f"  model_name: {os.environ['GATEHOUSE_MODEL']}\n"
        f"  api_base: {os.environ['OPENAI_BASE_URL']}\n"
        f"  api_key_name: gatehouse\n"
    )
    Path(folder, "keys.json").write_text(json.dumps({"gatehouse": os.environ["OPENAI_API_KEY"]}))

    def ask(*arguments: str) -> str:
        command = ["llm", "prompt", "-m", "gatehouse", *arguments]
        environment = {**os.environ, "LLM_USER_PATH": folder}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        print(answer.stdout.strip())
        return answer.stdout.strip()

    assert ask("I am Ada.") == "1 messages; the first was: I am Ada."
    assert ask("-c", "Who am I?") == "2 messages; the first was: I am Ada."
    assert ask("-c", "--no-stream", "Are you sure?") == "3 messages; the first was: I am Ada."
    assert ask("A new conversation.") == "4 messages; the first was: I am Ada.", "the session remembers"
