"""What Keras' callbacks that look at a metric need to look at validations instead of epochs."""

from __future__ import annotations

from typing import Any

__all__ = ["Monitor"]


class Monitor:
    """Counts validations, and keeps the attributes that Keras counts with.

    Attributes:
        tests: validations so far.
    """

    _kept: tuple[str, ...] = ()
    monitor: str
    tests = 0

    def begin(self) -> None:
        """Sets up what Keras 3 otherwise sets up, and resets, at the first epoch's end."""
        if getattr(self, "monitor_op", True) is None:
            best = getattr(self, "best", None)
            self._find_direction()
            if self.tests:
                self.best = best

    def _find_direction(self) -> None:
        try:
            self._set_monitor_op()  # type: ignore[attr-defined]
        except ValueError:  # Keras 2 goes by the name where Keras 3 cannot tell
            larger_is_better = "acc" in self.monitor or self.monitor.endswith("auc")
            self.mode = "max" if larger_is_better else "min"
            self._set_monitor_op()  # type: ignore[attr-defined]

    def get_state(self) -> dict[str, Any]:
        """Returns how it stands."""
        return {name: getattr(self, name, None) for name in (*self._kept, "tests")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        for name, value in state.items():
            setattr(self, name, value)
