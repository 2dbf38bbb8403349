"""Builds the gateway from its parts, group by group; each group is made of those before it, and holds no logic."""

from gateway.assembly.agents import open_agents
from gateway.assembly.answering import open_answering
from gateway.assembly.chats import open_chats
from gateway.assembly.desk import open_desk
from gateway.assembly.ground import Ground
from gateway.assembly.watch import open_watch

__all__ = ["Ground", "open_agents", "open_answering", "open_chats", "open_desk", "open_watch"]
