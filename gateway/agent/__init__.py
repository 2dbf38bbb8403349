"""The agent: a loop over a model provider and tools. It knows nothing of sessions, channels and the spool."""
