"""Coding agents: programs that speak the Agent Client Protocol (ACP), each in a sandbox with one repository.

`pool.py` keeps the running programs, `agent.py` drives one of them, `turn.py` runs a turn with it. The SDK takes half a
second to import. Only `acp_session.py`, `agent.py`, `client.py`, `turn.py` and `updates.py` import it, and they are
loaded with the first turn.
"""
