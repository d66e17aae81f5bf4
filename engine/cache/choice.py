"""What a user chose, from wherever it came: a preset, single values, or both; settings follow from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...protocol.errors import InvalidRequestError
from ...protocol.messages.cache import CacheSettings
from .presets import PRESETS, preset
from .settings import Settings

#: A mask has one source: naming one takes the place of another that was named before.
MASKS = ("steps_computation_mask", "scm_preset", "scm_compute_bins", "scm_cache_bins")
BINS = ("scm_compute_bins", "scm_cache_bins")
ENABLE_TAYLORSEER = "enable_taylorseer"
CUSTOM, OFF = "custom", "off"
KNOWN = frozenset({field.name for field in fields(Settings)} | {ENABLE_TAYLORSEER})


@dataclass(frozen=True)
class Choice:
    """Single `values` on top of a `preset`, or else of cache-dit's defaults.

    values      by the names of Settings, and `enable_taylorseer`; a list stands for a tuple
    origin      where it was written, for error messages
    """

    preset: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "the step cache settings"

    def __post_init__(self) -> None:
        unknown = sorted(self.values.keys() - KNOWN)
        if unknown:
            raise InvalidRequestError(f"{self.origin}: there is no step cache setting {unknown[0]!r}.")
        fixed = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.values.items()
        }
        object.__setattr__(self, "values", fixed)
        if self.preset and self.preset not in PRESETS:
            raise InvalidRequestError(
                f"{self.origin}: there is no step cache preset {self.preset!r}.",
                hint=f"Choose one of {', '.join(PRESETS)}.",
            )

    @classmethod
    def asked(cls, settings: CacheSettings, origin: str) -> Choice | None:
        """What a request's `settings` choose; None for no cache. Raises InvalidRequestError."""
        if settings.preset == OFF:
            return None
        return cls("" if settings.preset == CUSTOM else settings.preset, settings.values, origin)

    def updated(self, values: Mapping[str, Any], origin: str) -> Choice:
        """This choice with some values replaced."""
        kept = dict(self.values)
        if any(name in values for name in MASKS):
            replaced = [
                name for name in MASKS if name not in BINS or not any(name in values for name in BINS)
            ]
            kept = {name: value for name, value in kept.items() if name not in replaced}
        return Choice(self.preset, kept | dict(values), origin if values else self.origin)

    def settings(self, family: str = "", steps: int = 28) -> Settings:
        """The settings for a run of `steps` steps of `family`.

        Raises InvalidRequestError, naming the origin, when the values contradict themselves or each other.
        """
        base = preset(self.preset, family, steps) if self.preset else Settings()
        order = self._order(base)
        given = {name: value for name, value in self.values.items() if name != ENABLE_TAYLORSEER}
        try:
            return Settings(**(self._below(base, given) | given | {"taylorseer_order": order}))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{self.origin}: {error.message}", hint=error.hint) from error

    @staticmethod
    def _below(base: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values of `base`, without those that only made sense with what `given` replaces."""
        plain, below = Settings(), {field.name: getattr(base, field.name) for field in fields(base)}
        if any(name in given for name in MASKS):
            below |= {name: getattr(plain, name) for name in MASKS}
            if given.get("scm_preset") == plain.scm_preset:
                below["steps_computation_policy"] = plain.steps_computation_policy
        if "residual_diff_threshold" in given:  # a threshold is there to be heard
            below["steps_computation_policy"] = plain.steps_computation_policy
        if given.get("steps_computation_policy", below["steps_computation_policy"]) == "dynamic":
            below["skip_fn_on_static"] = False
        return below

    def _order(self, base: Settings) -> int:
        enabled, wanted = self.values.get(ENABLE_TAYLORSEER), self.values.get("taylorseer_order")
        if enabled is None and wanted and not self.preset:
            raise InvalidRequestError(
                f"{self.origin}: taylorseer_order {wanted} says nothing unless enable_taylorseer is set.",
                hint="Set enable_taylorseer to true, or to false to leave it off.",
            )
        if enabled is False:
            return 0
        order = base.taylorseer_order if wanted is None else int(wanted)
        return max(order, 1) if enabled and wanted is None else order
