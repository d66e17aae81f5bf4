"""What a MODEL wears at one call: its patches, LoRA files and current hooks, as one set for the engine.

ComfyUI keeps patches by weight. LoRA files keep with them how many patches each weight had before them, so
that an order in which everything can be applied is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..protocol.adapters import AdapterSet
from ..protocol.messages.adapters import LoraFile, WeightPatch
from . import bypass
from .weight_patches import Entry, Records, is_model, refuse

#: Where a MODEL keeps its files.
ATTACHMENT = "outboard_loras"
#: How a record must look to commute with the one of `Records.of_model`.
ADDED = ("lora", "loha", "lokr", "diff")

Patches = Mapping[str, Sequence[Entry]]


@dataclass(frozen=True, eq=False)
class Layer:
    """A LoRA file, and how many patches each weight had when it was added."""

    file: LoraFile
    before: Mapping[str, int]


@dataclass
class Outfits:
    """The sets of one patcher, kept while nothing about it changes."""

    _kept: dict[Any, AdapterSet] = field(default_factory=dict)

    def of(self, patcher: Any) -> AdapterSet:
        """The set for a call of `patcher` as it is now, with its current hooks.

        Raises UnsupportedRequestError for patches that are no data, naming them.
        """
        key = _state(patcher)
        if key not in self._kept:
            self._forget_all_but(patcher.patches_uuid)
            self._kept[key] = assemble(patcher)
        return self._kept[key]

    def _forget_all_but(self, uuid: Any) -> None:
        self._kept = {key: found for key, found in self._kept.items() if key[0] == uuid}


def _state(patcher: Any) -> Any:
    hooks = patcher.current_hooks.hooks if patcher.current_hooks is not None else ()
    worn = tuple((hook.hook_ref, hook.strength) for hook in hooks if hook.hook_ref in patcher.hook_patches)
    return patcher.patches_uuid, layers_of(patcher), bypass.identity(patcher), worn


def layers_of(patcher: Any) -> tuple[Layer, ...]:
    """The LoRA files of a MODEL, in order."""
    found: tuple[Layer, ...] = patcher.get_attachment(ATTACHMENT) or ()
    return found


def assemble(patcher: Any) -> AdapterSet:
    """Everything that `patcher` does to weights, in an order in which it can be done."""
    records = Records()
    hooked = patcher.get_combined_hook_patches(patcher.current_hooks)
    models = [(key, entry) for key, entries in hooked.items() for entry in entries if is_model(entry)]
    rest = {key: [entry for entry in entries if not is_model(entry)] for key, entries in hooked.items()}
    mixed = [records.of_model(key, entry) for key, entry in models]
    adapters = [
        *mixed,
        *_layered(patcher.patches, layers_of(patcher), records),
        *_in_turn(rest, records),
        *(records.of_bypass(*found) for found in bypass.adapters_of(patcher)),
    ]
    _check_mixed(mixed, adapters)
    return AdapterSet(adapters, records.tensors)


def _layered(patches: Patches, layers: Sequence[Layer], records: Records) -> Iterator[WeightPatch | LoraFile]:
    """Before each file the patches that it found there, and after the last one the rest."""
    done: Counter[str] = Counter()
    for layer in layers:
        earlier = {key: entries[done[key] : layer.before.get(key, 0)] for key, entries in patches.items()}
        yield from _in_turn(earlier, records)
        yield layer.file
        done.update({key: len(entries) for key, entries in earlier.items()})
    yield from _in_turn({key: entries[done[key] :] for key, entries in patches.items()}, records)


def _in_turn(patches: Patches, records: Records) -> Iterator[WeightPatch]:
    for key, entries in patches.items():
        for entry in entries:
            record = records.of_entry(key, entry)
            if record is not None:
                yield record


def _check_mixed(mixed: Sequence[WeightPatch], adapters: Sequence[WeightPatch | LoraFile]) -> None:
    """A weight that is drawn towards another model's may have no more than things added to it."""
    keys = {record.key for record in mixed}
    others = [adapter for adapter in adapters[len(mixed) :] if _is_on(adapter, keys)]
    if len(keys) < len(mixed) or not all(map(_is_added, others)):
        refuse(
            "Weights of this MODEL are drawn towards another model's, and altered as well",
            "CreateHookModelAsLora",
        )


def _is_on(adapter: WeightPatch | LoraFile, keys: set[str]) -> bool:
    return bool(keys) and (isinstance(adapter, LoraFile) or (adapter.key in keys and not adapter.bypass))


def _is_added(adapter: WeightPatch | LoraFile) -> bool:
    if isinstance(adapter, LoraFile):
        return False
    plain = adapter.kind in ADDED and "dora_scale" not in adapter.tensors
    return plain and adapter.strength_model == 1.0
