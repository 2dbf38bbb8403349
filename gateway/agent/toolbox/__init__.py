"""The built-in tools, one small module for each thing they touch."""

from gateway.agent.toolbox.clock import current_time
from gateway.agent.toolbox.editing import edit_file, write_file
from gateway.agent.toolbox.files import list_files, read_file
from gateway.agent.toolbox.notes import recall, remember
from gateway.agent.toolbox.searching import search_files

__all__ = [
    "BUILT_IN",
    "current_time",
    "edit_file",
    "list_files",
    "read_file",
    "recall",
    "remember",
    "search_files",
    "write_file",
]

BUILT_IN = (current_time, list_files, read_file, write_file, edit_file, search_files, remember, recall)
