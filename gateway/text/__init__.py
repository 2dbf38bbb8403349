"""Text on its way in and out, the same for every channel.

Markdown rendering is in `gateway.text.markdown`, which is not imported here: only who shows HTML pays for it.
"""

from gateway.text.clean import clean, excerpt, printable
from gateway.text.splitting import split, utf16_length
from gateway.text.tables import draw_table

__all__ = ["clean", "draw_table", "excerpt", "printable", "split", "utf16_length"]
