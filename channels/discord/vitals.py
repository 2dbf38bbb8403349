"""Whether the channel can receive: the line must stand, and what comes in must find a taker."""

from gateway.contract import Pulse

__all__ = ["Vitals"]


class Vitals:
    """Several pulses as one, which is up when all of them are."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._down: dict[str, str] = {}

    def part(self, name: str, *, is_up: bool) -> "Part":
        if not is_up:
            self._down[name] = ""
        return Part(self, name)

    def set(self, name: str, reason: str | None) -> None:
        if reason is not None:
            self._down[name] = reason
            self._pulse.down(reason)
            return
        self._down.pop(name, None)
        if not self._down:
            self._pulse.up()


class Part:
    def __init__(self, whole: Vitals, name: str) -> None:
        self._whole = whole
        self._name = name

    def up(self) -> None:
        self._whole.set(self._name, None)

    def down(self, reason: str) -> None:
        self._whole.set(self._name, reason)
