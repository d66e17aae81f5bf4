"""Blocks left out of a network for one forward, from outside: what guidance by skipped layers asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError

#: The argument of a request that names the blocks: a table of kind -> numbers.
ARGUMENT = "skip_blocks"
DOUBLE, SINGLE = "double_block", "single_block"


@dataclass(frozen=True)
class Stack:
    """A list of equal blocks by its name in the module; a skipped block answers these of its inputs."""

    name: str
    answers: tuple[str, ...]


IMAGE, TEXT = "hidden_states", "encoder_hidden_states"
JOINT = Stack("transformer_blocks", (TEXT, IMAGE))
#: By family and by ComfyUI's name for a kind of block, which it counts from 0 as the modules do.
STACKS: Mapping[str, Mapping[str, Stack]] = {
    "flux1": {DOUBLE: JOINT, SINGLE: Stack("single_transformer_blocks", (TEXT, IMAGE))},
    "flux2": {DOUBLE: JOINT, SINGLE: Stack("single_transformer_blocks", (IMAGE,))},
    "chroma": {DOUBLE: JOINT, SINGLE: Stack("single_transformer_blocks", (IMAGE,))},
    "hunyuan_video": {
        DOUBLE: Stack("transformer_blocks", (IMAGE, TEXT)),
        SINGLE: Stack("single_transformer_blocks", (IMAGE, TEXT)),
    },
    "qwen_image": {DOUBLE: JOINT},
    "sd3": {DOUBLE: JOINT},
    "wan": {DOUBLE: Stack("blocks", (IMAGE,))},
    "ltx_video": {DOUBLE: Stack("transformer_blocks", (IMAGE,))},
}


@contextmanager
def skipped(module: nn.Module, family: str, title: str, wanted: Any) -> Iterator[None]:
    """Within, the blocks in `wanted`, a table of kind -> numbers, hand their inputs on; None skips nothing.

    A number beyond the last block has no effect, nor has a kind that the family lacks, as in ComfyUI.
    Raises UnsupportedRequestError for a family that cannot skip, InvalidRequestError for what is no table.
    """
    with ExitStack() as stack:
        for kind, numbers in _checked(wanted).items():
            place = _stacks(family, title).get(kind)
            if place is not None:
                blocks: Any = module.get_submodule(place.name)
                for number in sorted(set(numbers)):
                    if number < len(blocks):
                        stack.enter_context(_handing_on(blocks[number], place.answers))
        yield


def _stacks(family: str, title: str) -> Mapping[str, Stack]:
    found = STACKS.get(family)
    if found is None:
        raise UnsupportedRequestError(
            f"{title} has no blocks that can be skipped.",
            hint="Skipping layers has no effect on it in ComfyUI either: remove the SkipLayerGuidance node.",
        )
    return found


def _checked(wanted: Any) -> Mapping[str, list[int]]:
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping) or not all(map(_is_numbers, wanted.values())):
        raise InvalidRequestError(f"{ARGUMENT} must be a table of lists of block numbers, not {wanted!r}.")
    unknown = sorted(wanted.keys() - {DOUBLE, SINGLE})
    if unknown:
        raise InvalidRequestError(f"{ARGUMENT} names {unknown[0]!r}; there are {DOUBLE} and {SINGLE}.")
    return wanted


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(item) is int and item >= 0 for item in value)


@contextmanager
def _handing_on(block: nn.Module, names: tuple[str, ...]) -> Iterator[None]:
    """Within, `block` answers those of its inputs, alone or as a tuple, and computes nothing."""
    signature = inspect.signature(type(block).forward)  # what an instance has instead may take anything
    own = vars(block).get("forward")

    def hand_on(*inputs: Any, **keywords: Any) -> Any:
        given = signature.bind(block, *inputs, **keywords).arguments
        found = tuple(given[name] for name in names)
        return found if len(found) > 1 else found[0]

    block.__dict__["forward"] = hand_on
    try:
        yield
    finally:
        if own is None:
            del block.__dict__["forward"]
        else:
            block.__dict__["forward"] = own
