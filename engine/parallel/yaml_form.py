"""The `parallelism_config` of cache-dit's YAML, as users of SGLang have it: it becomes a Layout.

Form: https://github.com/vipshop/cache-dit (Apache-2.0), docs/LOAD_CONFIGS.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...protocol.errors import InvalidRequestError
from .layout import Layout

SECTION = "parallelism_config"
AUTO = "auto"
SIZES = {"ulysses_size": "ulysses", "ring_size": "ring", "tp_size": "tp"}
#: Further keys: those that say what is so here anyway, and those that speak of what the engine has not.
KWARGS = "parallel_kwargs"
ALWAYS = {"attention_backend": "native", "ulysses_anything": True, "experimental_ulysses_anything": True}
NEVER = frozenset({"ulysses_float8", "ulysses_async", "experimental_ulysses_float8"})
ELSEWHERE = frozenset({"extra_parallel_modules"})

log = logging.getLogger(__name__)


def read_section(content: Mapping[str, Any], origin: str, ranks: int) -> Layout | None:
    """The layout of a file's content for `ranks` ranks, 0 when nobody has said; None without the section.

    Raises InvalidRequestError naming `origin` and the key.
    """
    if SECTION not in content:
        return None
    where = f"{origin}: {SECTION}"
    section = content[SECTION]
    _require(isinstance(section, Mapping), where, "it must hold keys and values")
    more = section.get(KWARGS) or {}
    _require(isinstance(more, Mapping), f"{where}.{KWARGS}", "it must hold keys and values")
    sizes: dict[str, int | None] = {}
    for name, value in {**more, **{key: value for key, value in section.items() if key != KWARGS}}.items():
        if name in SIZES and value is not None:
            sizes[SIZES[name]] = None if value == AUTO else _size(value, f"{where}.{name}")
        elif name not in SIZES:
            _check_other(str(name), value, f"{where}.{name}")
    return _layout(sizes, where, ranks)


def _layout(sizes: dict[str, int | None], where: str, ranks: int) -> Layout:
    given = Layout(**{axis: size for axis, size in sizes.items() if size is not None})
    rest = [axis for axis, size in sizes.items() if size is None]
    if not rest:
        return given
    _require(len(rest) == 1, where, f"only one size can be {AUTO}, not {' and '.join(rest)}")
    _require(ranks > 0, where, f"{rest[0]} {AUTO} is what the ranks leave, so say `--ranks`")
    _require(ranks % given.world == 0, where, f"{ranks} ranks do not divide by {given}")
    return Layout(**{**{axis: size or 1 for axis, size in sizes.items()}, rest[0]: ranks // given.world})


def _size(value: object, where: str) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    _require(whole, where, f"{value!r} must be a whole number from 1, or {AUTO}")
    assert isinstance(value, int)
    return value


def _check_other(name: str, value: object, where: str) -> None:
    if name in ELSEWHERE:
        log.warning("%s has no effect: text encoders and VAEs stay in ComfyUI.", where)
        return
    if name in ALWAYS:
        _require(value in (None, ALWAYS[name], "auto"), where, f"{ALWAYS[name]!r} is the only one there is")
        return
    if name in NEVER:
        _require(not value, where, "there is no such exchange here")
        return
    raise InvalidRequestError(
        f"{where}: there is no such key.", hint=f"Known: {', '.join((*SIZES, KWARGS, *ALWAYS))}."
    )


def _require(holds: bool, where: str, message: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{where}: {message}.", hint="See docs/from-sglang.md for the form.")
