"""The agent: a loop over a provider and tools, which knows of no session, channel or file but what it is handed."""
