"""The commands that people can send in a chat: parsed in `parser`, run by `runner`, listed in `registry`."""
