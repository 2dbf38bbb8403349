"""The core of Gatehouse: contract, routing, sessions, turns, agent, commands, HTTP and the daemon itself."""

__version__ = "0.1.0"
