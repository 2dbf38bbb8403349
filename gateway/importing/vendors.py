"""Vendors of models, by the names that other gateways give them, and how our providers reach them."""

from gateway.importing.values import ProposedModel

_OPENAI_COMPATIBLE = {
    "openai": "",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "groq": "https://api.groq.com/openai/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "mistral": "https://api.mistral.ai/v1",
    "xai": "https://api.x.ai/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "zhipu": "https://open.bigmodel.cn/api/paas/v4",
    "zai": "https://api.z.ai/api/paas/v4",
    "ollama": "http://127.0.0.1:11434/v1",
    "vllm": "http://127.0.0.1:8000/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
}


def proposed_model(provider: str, model: str, *, base_url: str = "", api_key: str = "") -> ProposedModel | None:
    """Return the model with an endpoint that our providers reach; None if the provider is none of those."""
    name = provider.casefold()
    if "/" in model and (not name or model.partition("/")[0].casefold() == name):
        name, model = model.partition("/")[0].casefold(), model.partition("/")[2]
    if name == "anthropic":
        return ProposedModel(provider=name, kind="anthropic", model=model, base_url=base_url, api_key=api_key)
    base_url = base_url or _OPENAI_COMPATIBLE.get(name, "")
    if not base_url and name != "openai":
        return None
    return ProposedModel(provider=name or "imported", kind="openai", model=model, base_url=base_url, api_key=api_key)
