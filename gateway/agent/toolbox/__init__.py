"""The built-in tools, one module for each subject."""

from config import Settings
from gateway.agent.toolbox.chat import current_time, plan, remind, send_file
from gateway.agent.toolbox.files import edit_file, list_files, read_file, search_files, write_file
from gateway.agent.toolbox.media import make_generate_image, make_speak
from gateway.agent.toolbox.notes import remember
from gateway.agent.toolbox.recall import recall
from gateway.agent.toolbox.search import make_search
from gateway.agent.toolbox.shell import make_shell
from gateway.agent.toolbox.web import make_fetch
from gateway.agent.tools import Tool

__all__ = [
    "BUILT_IN",
    "ON_REQUEST",
    "built_in",
    "current_time",
    "edit_file",
    "list_files",
    "plan",
    "read_file",
    "recall",
    "remember",
    "remind",
    "search_files",
    "send_file",
    "write_file",
]

BUILT_IN = (
    current_time,
    list_files,
    read_file,
    write_file,
    edit_file,
    search_files,
    remember,
    recall,
    remind,
    send_file,
)
"""The tools without settings."""

ON_REQUEST = (plan,)
"""The tools of agents that list them. Other models would pay for their description without need."""


def built_in(settings: Settings) -> tuple[Tool, ...]:
    """Return the tools of agents that list none."""
    tools, providers = settings.tools, settings.providers
    shell = (make_shell(tools.shell),) if tools.shell.enabled else ()
    search = (make_search(tools.search),) if tools.search.engine else ()
    images, speech = tools.images, tools.speech
    image = (make_generate_image(images, providers[images.provider]),) if images.provider else ()
    speak = (make_speak(speech, providers[speech.provider]),) if speech.provider else ()
    return (*BUILT_IN, make_fetch(tools.fetch, tools.documents), *search, *image, *speak, *shell)
