"""The built-in tools, one small module for each thing they touch."""

from gateway.agent.toolbox.clock import current_time
from gateway.agent.toolbox.files import list_files, read_file
from gateway.agent.toolbox.notes import recall, remember

__all__ = ["BUILT_IN", "current_time", "list_files", "read_file", "recall", "remember"]

BUILT_IN = (current_time, list_files, read_file, remember, recall)
