"""Which step cache a run gets: its own settings, else those the engine is configured with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...protocol.messages.cache import CacheSettings
from ..cache.choice import CUSTOM, Choice
from ..cache.config import CacheConfig

#: The second of Wan 2.2's two transformers, by what its files are called: nothing in their headers tells.
SECOND = re.compile(r"low[-_ ]?noise", re.IGNORECASE)


@dataclass(frozen=True)
class Wish:
    """What to cache by. own: the request brought it, so that what cannot be is its error and not a note."""

    choice: Choice
    own: bool
    force: bool = False

    @property
    def name(self) -> str:
        """The preset, or where the settings were written."""
        return self.choice.preset or (CUSTOM if self.own else self.choice.origin)


def wish_of(settings: CacheSettings | None, config: CacheConfig, model: str) -> Wish | None:
    """What a run with `settings` of the file `model` asks for; None for no cache.

    Raises InvalidRequestError for a setting that does not exist.
    """
    if settings is None:
        choice = config.secondary if SECOND.search(model) else config.primary
        return None if choice is None else Wish(choice, own=False)
    asked = Choice.asked(settings, "The step cache settings")
    return None if asked is None else Wish(asked, own=True, force=settings.force)


def config_from(values: Mapping[str, Any]) -> CacheConfig:
    """The configuration of which `values` are the fields, after JSON."""
    primary, secondary = (
        None if (choice := values.get(name)) is None else Choice(**choice)
        for name in ("primary", "secondary")
    )
    return CacheConfig(primary, secondary, values.get("budget", 0))
