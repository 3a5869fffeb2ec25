"""The experiment configuration as a context gives it."""

from __future__ import annotations

from typing import Any

__all__ = ["DEFAULT_SCHEDULING_UNIT", "ExperimentConfig"]

DEFAULT_SCHEDULING_UNIT = 100  # batches


class ExperimentConfig(dict[str, Any]):
    """The mapping that the user wrote, with methods for what is asked most.

    Source: `determined.ExperimentConfig` of Determined 0.12 and 0.13.
    """

    def scheduling_unit(self) -> int:
        """Returns the batches in a training workload."""
        named = self.get("scheduling_unit") or self.get("batches_per_step")
        return int(named or DEFAULT_SCHEDULING_UNIT)

    def batches_per_step(self) -> int:
        """Returns the same, by its name in 0.12."""
        return self.scheduling_unit()

    def slots_per_trial(self) -> int:
        """Returns the devices of a trial."""
        return int(self._section("resources").get("slots_per_trial") or 1)

    def native_parallel_enabled(self) -> bool:
        """Returns whether user code batches by the global batch size."""
        return bool(self._section("resources").get("native_parallel"))

    def experiment_seed(self) -> int:
        """Returns the seed of the experiment; 0 if there is none."""
        return int(self._section("reproducibility").get("experiment_seed") or 0)

    def get_records_per_epoch(self) -> int | None:
        """Returns the records in an epoch; None if the configuration does not say."""
        records = self.get("records_per_epoch")
        return None if records is None else int(records)

    def get_min_validation_period(self) -> dict[str, int]:
        """Returns how long training goes on without a validation; empty if that is not limited."""
        return self.get("min_validation_period") or {}

    def get_data_layer_type(self) -> str:
        """Returns where cached datasets lie, such as "shared_fs"."""
        return str(self["data_layer"]["type"])

    def debug_enabled(self) -> bool:
        """Returns whether the user wants more to be logged."""
        return bool(self.get("debug"))

    def _section(self, name: str) -> dict[str, Any]:
        return self.get(name) or {}
