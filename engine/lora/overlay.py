"""The LoRAs in use on one model: its weights are made base plus patches, in place, and the base again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..models.model import Model
from .bypass import Bypasses
from .layout import layout_of
from .patch import ADAPTERS, Patch
from .stores import Store, store_of

Patches = Mapping[str, tuple[Patch, ...]]


@dataclass(frozen=True)
class Touched:
    """What one change of the LoRAs rewrote: weights of the file, and bytes in the module's memory."""

    weights: int
    bytes: int


class Overlay:
    """Keeps `model` at base plus patches. Nobody else may write to its weights meanwhile."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._layout = layout_of(model)
        self._merged: dict[str, tuple[Patch, ...]] = {}
        self._stores: dict[str, Store] = {}
        self._bypasses = Bypasses(model, self._layout)

    @torch.no_grad()
    def use(self, patches: Sequence[Patch], *, bypass: bool | None = None) -> Touched:
        """Make the model its base with `patches`, of each weight in their order; none gives the base back.

        Only weights whose patches differ from those of the last call are written. `bypass` overrides that of
        every patch; those of kinds that have no such form are merged, as in ComfyUI.
        Raises InvalidRequestError for a weight the model lacks or a patch that does not fit it, and
        UnsupportedRequestError for what cannot be done; the model is then its base.
        """
        done = False
        try:
            wanted, beside = self._sorted(patches, bypass)
            changed = [key for key in {**self._merged, **wanted} if not _same(self._merged, wanted, key)]
            written = [self._write(key, wanted.get(key, ())) for key in changed]
            self._bypasses.use(beside)
            done = True
        finally:
            if not done:
                self._restore()
        self._merged = dict(wanted)
        return Touched(len(written), sum(written))

    def _sorted(self, patches: Iterable[Patch], bypass: bool | None) -> tuple[Patches, list[Patch]]:
        """The patches to merge by the weight's name in the file, and those to bypass it."""
        merged: dict[str, list[Patch]] = defaultdict(list)
        beside = []
        for patch in patches:
            weight = self._layout.find(patch.key)
            wanted = patch.bypass if bypass is None else bypass
            if wanted and patch.kind in ADAPTERS:
                beside.append(replace(patch, bypass=True))
            else:
                merged[weight.key].append(patch)
        return {key: tuple(found) for key, found in merged.items()}, beside

    def _write(self, key: str, patches: tuple[Patch, ...]) -> int:
        if key not in self._stores:
            self._stores[key] = store_of(self._model, self._layout.weights[key])
        if patches:
            return self._stores[key].write(patches)
        return self._stores.pop(key).restore()

    def _restore(self) -> None:
        """The base, after a change that broke off."""
        self._bypasses.use([])
        for key in list(self._stores):
            self._stores.pop(key).restore()
        self._merged = {}


def _same(one: Patches, two: Patches, key: str) -> bool:
    before, after = one.get(key, ()), two.get(key, ())
    return len(before) == len(after) and all(map(Patch.same_as, before, after))
