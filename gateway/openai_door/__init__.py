"""The OpenAI-compatible door: OpenAI's HTTP API, with agents in the place of models and sessions as memory."""
