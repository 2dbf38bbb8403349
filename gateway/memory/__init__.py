"""The memory of each scope: statements in Markdown files that people may read and edit."""

from gateway.memory.statement import Archived, Source, Statement
from gateway.memory.store import Memory, MemoryStore, memory_folder

__all__ = ["Archived", "Memory", "MemoryStore", "Source", "Statement", "memory_folder"]
