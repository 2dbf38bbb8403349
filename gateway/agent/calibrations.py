"""What was learned of each model's tokeniser, kept over a restart."""

from collections import OrderedDict

import msgspec

from gateway.agent.tokens import DEFAULT_WEIGHTS, Calibration

__all__ = ["Calibrations"]

_MAX_MODELS = 64
_WORTH_KEEPING = 0.02
"""How far a weight has to have moved since it was last written down."""

_Kept = dict[str, tuple[float, ...]]


class Calibrations:
    """One calibration for each model; those of the models that were not used for longest are forgotten."""

    def __init__(self, kept: str | None = None) -> None:
        """Begin with what `news` gave before; what cannot be read is as good as nothing."""
        self._models: OrderedDict[str, Calibration] = OrderedDict()
        self._written: _Kept = {}
        for model, weights in _read(kept).items():
            self._models[model] = Calibration(weights)
            self._written[model] = self._models[model].weights

    def __getitem__(self, model: str) -> Calibration:
        calibration = self._models.get(model) or self._models.setdefault(model, Calibration())
        self._models.move_to_end(model)
        while len(self._models) > _MAX_MODELS:
            self._models.popitem(last=False)
        return calibration

    def news(self) -> str | None:
        """Return all that is known, to be kept, when it has changed enough since the last time; None otherwise."""
        weights = {model: calibration.weights for model, calibration in self._models.items()}
        if not any(_has_moved(now, self._written.get(model)) for model, now in weights.items()):
            return None
        self._written = weights
        rounded = {model: [round(weight, 4) for weight in each] for model, each in weights.items()}
        return msgspec.json.encode(rounded).decode()


def _has_moved(now: tuple[float, ...], before: tuple[float, ...] | None) -> bool:
    since = before or DEFAULT_WEIGHTS
    return now != since and any(abs(new / old - 1) > _WORTH_KEEPING for new, old in zip(now, since, strict=True))


def _read(kept: str | None) -> _Kept:
    try:
        read = msgspec.json.decode(kept or "{}", type=_Kept)
    except msgspec.DecodeError:
        return {}
    models = [(model, weights) for model, weights in read.items() if len(weights) == len(DEFAULT_WEIGHTS)]
    return dict(models[-_MAX_MODELS:])
