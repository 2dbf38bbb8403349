"""The books: what every session adds up to. They are changed on the event loop, without a pause after looking."""

from gateway.errors import Refused
from gateway.sessions.names import parse_key
from gateway.sessions.scopes import Scopes
from gateway.sessions.state import SessionState

__all__ = ["Books"]


class Books:
    def __init__(self) -> None:
        self.scopes = Scopes({}, 0)

    def sessions(self, scope: str) -> dict[str, SessionState]:
        return self.scopes[scope].sessions

    def find(self, key: str) -> SessionState | None:
        return self.scopes[parse_key(key)[0]].sessions.get(key)

    def state(self, key: str) -> SessionState:
        state = self.find(key)
        if state is None:
            raise Refused("That session does not exist any more. /session list shows what there is.")
        return state

    def update(self, key: str, state: SessionState, *, is_active: bool = False) -> None:
        """Put what is now known of a session in place of what was known before."""
        name, _ = parse_key(key)
        scope = self.scopes[name].with_session(key, state)
        self.scopes[name] = scope.pointing_to(key) if is_active else scope

    def forget(self, key: str) -> None:
        """Take a session out; its number is not given to another."""
        name, _ = parse_key(key)
        self.scopes[name] = self.scopes[name].without(key)

    def drop_scope(self, name: str) -> None:
        """Forget a scope without sessions, and its numbers with it."""
        self.scopes.drop(name)
