from pathlib import Path

import pytest

from config import Secret
from gateway.install.setup import SetupPlan, credentials_drop_in, list_ollama_models, ollama_url
from gateway.install.units import ServiceScope, service_paths


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),  # noqa: S104 - nothing listens there.
        ("0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("gpu.local", "http://gpu.local:11434"),
        (":8000", "http://127.0.0.1:8000"),
        ("[::]:8000", "http://[::1]:8000"),
        ("https://ollama.example", "https://ollama.example"),
        ("http://gpu.local:80/", "http://gpu.local:80"),
        ("gpu.local:none", "http://127.0.0.1:11434"),
    ],
)
def test_ollama_host_is_understood_in_all_forms(variable: str, url: str) -> None:
    assert ollama_url({"OLLAMA_HOST": variable}) == url


async def test_no_models_are_found_without_ollama() -> None:
    assert await list_ollama_models("http://127.0.0.1:9") == []


def test_system_service_gets_its_secrets_from_systemd(tmp_path: Path) -> None:
    where = service_paths(ServiceScope.SYSTEM, tmp_path, tmp_path)
    typed = SetupPlan()
    typed.add_token("telegram", Secret("canary-token"), None)
    plan = typed.with_credentials()
    assert plan.values["channels.telegram.token"] == "credential:telegram.token"
    assert plan.values["channels.telegram.enabled"] is True
    where.credentials.parent.mkdir(parents=True)
    where.credentials.write_text("[Service]\nLoadCredential=web:/root/web.token\n")
    loads = credentials_drop_in(where, plan.secrets)
    assert loads.splitlines()[-2:] == [
        f"LoadCredential=telegram.token:{tmp_path}/etc/gatehouse/telegram.token",
        "LoadCredential=web:/root/web.token",
    ]
