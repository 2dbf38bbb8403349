"""The HTTP API for programs: sessions, prompts, live events, and its OpenAPI description."""
