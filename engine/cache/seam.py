"""Where the cache enters a network: each repeated block's `forward` goes through whoever is asked there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...protocol.errors import InternalError, UnsupportedRequestError
from . import rows
from .patterns import BLOCK_LISTS, PATTERNS, Pattern
from .streams import Streams

Forward = Callable[..., Any]
Arguments = tuple[Any, ...]

#: Where a block keeps what was put on it.
SEAM = "_outboard_cache"


@dataclass(frozen=True, eq=False)
class Site:
    """One block: its place in the order they run, its module, its forward and how that is called.

    `own` is a forward that somebody put on this one block before, None for that of its class.
    """

    index: int
    block: nn.Module
    pattern: Pattern
    forward: Forward
    own: Forward | None
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a block, with the arguments as they came."""

    site: Site
    args: Arguments
    kwargs: Mapping[str, Any]

    @property
    def streams(self) -> Streams:
        """The tokens that go in."""
        pattern, named = self.site.pattern, self._named()
        return Streams(named[pattern.image], named[pattern.text] if pattern.text else None)

    def run(self) -> Streams:
        """Call the block."""
        return self._read(self.site.forward(*self.args, **self.kwargs))

    def run_rows(self, picked: Sequence[int], batch: int) -> Streams:
        """Call the block with some rows of `batch` only; gives these rows."""
        pattern = self.site.pattern
        dims = dict(pattern.rows) | {name: pattern.dim for name in (pattern.image, pattern.text) if name}
        named = {
            name: rows.take(value, picked, batch, dims[name]) if name in dims else value
            for name, value in self._named().items()
        }
        rest = self.args[len(self.site.names) :]
        if rest:
            return self._read(self.site.forward(*named.values(), *rest))
        return self._read(self.site.forward(**named))

    def answer(self, streams: Streams) -> Any:
        """`streams` in the form that the block returns."""
        if not self.site.pattern.text:
            return streams.image
        pair = streams.image, streams.text
        return pair[::-1] if self.site.pattern.text_first else pair

    def _named(self) -> dict[str, Any]:
        """Arguments by name; those beyond the named ones are left out."""
        return dict(zip(self.site.names, self.args, strict=False)) | dict(self.kwargs)

    def _read(self, output: Any) -> Streams:
        if not self.site.pattern.text:
            return Streams(output, None)
        image, text = output[::-1] if self.site.pattern.text_first else output
        return Streams(image, text)


#: Answers a call of a block in its place.
Through = Callable[[Call], Any]


def sites_of(module: nn.Module) -> tuple[Site, ...]:
    """The repeated blocks of a network in the order they run.

    Raises UnsupportedRequestError naming the class that the cache does not know.
    """
    name = type(module).__name__
    if name not in BLOCK_LISTS:
        raise UnsupportedRequestError(f"The step cache does not know {name}.", hint="Sample without a cache.")
    blocks = [block for blocks in BLOCK_LISTS[name] for block in _list(module, blocks)]
    return tuple(_site(index, block) for index, block in enumerate(blocks))


def attach(site: Site, through: Through) -> None:
    """Let `through` answer in the block's place; `site.forward` stays what computes."""

    # A compiled block calls this, and this calls what was compiled: what decides stays out of the graph.
    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def forward(*args: Any, **kwargs: Any) -> Any:
        return through(Call(site, args, kwargs))

    vars(site.block)["forward"] = forward
    vars(site.block)[SEAM] = site, forward, site.own


def detach(site: Site) -> None:
    """Undo `attach`. Raises InternalError when something else was put over it and is still there."""
    attributes = vars(site.block)
    installed, forward, own = attributes[SEAM]
    if installed is not site or attributes.get("forward") is not forward:
        raise InternalError("Something was installed over the step cache; remove that first.")
    del attributes[SEAM], attributes["forward"]
    if own is not None:
        attributes["forward"] = own


def _list(module: nn.Module, name: str) -> list[nn.Module]:
    blocks = module.get_submodule(name)
    assert isinstance(blocks, nn.ModuleList)
    return list(blocks)


def _site(index: int, block: nn.Module) -> Site:
    name = type(block).__name__
    if name not in PATTERNS:
        raise UnsupportedRequestError(
            f"The step cache does not know blocks of class {name}.", hint="Sample without a cache."
        )
    parameters = list(inspect.signature(type(block).forward).parameters.values())[1:]
    named = (parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
    return Site(index, block, PATTERNS[name], block.forward, vars(block).get("forward"), tuple(named))
