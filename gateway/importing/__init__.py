"""Taking in conversations of other gateways: their files to what was said in them, and that to a session of ours."""

from gateway.importing.placing import Place, placed
from gateway.importing.reading import Foreign, Unreadable, read
from gateway.importing.writing import session_id, transcript

__all__ = ["Foreign", "Place", "Unreadable", "placed", "read", "session_id", "transcript"]
