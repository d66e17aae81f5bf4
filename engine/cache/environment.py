"""Step cache settings in environment variables: SGLang's, as users have them, and our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.errors import InvalidRequestError
from .choice import BINS, ENABLE_TAYLORSEER
from .settings import SCM_PRESETS

SGLANG, OUTBOARD = "SGLANG_CACHE_DIT_", "OUTBOARD_CACHE_"
SECONDARY = "SECONDARY_"

TRUE, FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
#: What an article calls SGLang's masks.
SCM_ALIASES: Mapping[str, str] = {"quality": "slow", "balanced": "medium"}


def flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in TRUE | FALSE:
        raise ValueError("true or false")
    return lowered in TRUE


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def bins(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise ValueError("whole numbers with commas between, such as 8,3,3,2,2") from None


def scm(text: str) -> str:
    name = SCM_ALIASES.get(text.strip().lower(), text.strip().lower())
    if name not in SCM_PRESETS:
        raise ValueError(f"one of {', '.join(SCM_PRESETS)}")
    return name


def word(text: str) -> str:
    return text.strip().lower()


Reading = tuple[str, Callable[[str], Any]]

#: Ending of a variable -> name of the setting, and how its text is read.
SHARED: Mapping[str, Reading] = {
    "FN": ("Fn_compute_blocks", whole),
    "BN": ("Bn_compute_blocks", whole),
    "WARMUP": ("max_warmup_steps", whole),
    "RDT": ("residual_diff_threshold", number),
    "MC": ("max_continuous_cached_steps", whole),
    "TAYLORSEER": (ENABLE_TAYLORSEER, flag),
    "TS_ORDER": ("taylorseer_order", whole),
    "SCM_PRESET": ("scm_preset", scm),
    "SCM_COMPUTE_BINS": ("scm_compute_bins", bins),
    "SCM_CACHE_BINS": ("scm_cache_bins", bins),
    "SCM_POLICY": ("steps_computation_policy", word),
}
#: Those that only we have.
OWN: Mapping[str, Reading] = {
    "WARMUP_INTERVAL": ("warmup_interval", whole),
    "MAX_CACHED": ("max_cached_steps", whole),
    "ARDT": ("max_accumulated_residual_diff_threshold", number),
    "SKIP_FN": ("skip_fn_on_static", flag),
}
#: What SGLang assumes for a variable that is not set.
SGLANG_DEFAULTS: Mapping[str, Any] = {
    "Fn_compute_blocks": 1,
    "Bn_compute_blocks": 0,
    "max_warmup_steps": 4,
    "residual_diff_threshold": 0.24,
    "max_continuous_cached_steps": 3,
    ENABLE_TAYLORSEER: False,
    "taylorseer_order": 1,
    "steps_computation_policy": "dynamic",
}


def read(
    variables: Mapping[str, str], prefix: str, endings: Mapping[str, Reading], others: frozenset[str]
) -> dict[str, Any]:
    """The settings in the variables that begin with `prefix`; `others` are endings that are read elsewhere.

    Raises InvalidRequestError for an ending that is unknown and for a value that cannot be read.
    """
    values: dict[str, Any] = {}
    for variable in sorted(name for name in variables if name.startswith(prefix)):
        ending, text = variable.removeprefix(prefix), variables[variable]
        if ending in others or ending.startswith(SECONDARY) or not text.strip():
            continue
        if ending not in endings:
            raise InvalidRequestError(
                f"{variable}: there is no such step cache variable.",
                hint=f"{prefix}* ends in one of {', '.join(sorted({*endings, *others}))}.",
            )
        setting, reading = endings[ending]
        try:
            values[setting] = reading(text)
        except ValueError as error:
            raise InvalidRequestError(f"{variable} is {text!r}; it must be {error}.") from error
    if any(values.get(name) for name in BINS):  # as in cache-dit, bins come before a named mask
        values.pop("scm_preset", None)
    return values
