"""Runs one cell of the node matrix: a row's graph with a stock MODEL and with ours, in one server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load_file

from comfyui.graphs import Link, Subject, saved
from comfyui.matrix_rows import Row
from comfyui.scene import AbsentError, Recipe, Scene, Shared
from comfyui.server import ComfyServer, Outcome

#: On max|ours - stock| / max|stock| over a whole latent, in fp32.
TOLERANCE = 1e-5
REFUSAL = "UnsupportedRequestError"


@dataclass(frozen=True)
class Side:
    """What became of one side: a latent, with a report on ours, or the error that ended it."""

    latent: torch.Tensor | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    kind: str = ""

    @property
    def refused(self) -> bool:
        return self.kind.endswith(REFUSAL)


@dataclass(frozen=True)
class Cell:
    """One result in words, how far ours is from stock, and the path it took or what was said."""

    result: str
    difference: float | None = None
    note: str = ""


@dataclass(eq=False)
class Bench:
    """A server. `info`: what its nodes take."""

    server: ComfyServer
    info: Mapping[str, Any]
    _bases: dict[tuple[Recipe, str, str], torch.Tensor] = field(default_factory=dict)

    def cell(self, row: Row, subject: Subject) -> Cell | None:
        """What the row comes to; None for a node that this version does not have.

        Raises AssertionError for anything that the row does not account for.
        """
        try:
            stock, ours = self._both(row, subject)
        except AbsentError:
            return None
        if stock.error:
            assert any(words in stock.error for words in row.fails), f"stock fails: {stock.error}"
            assert ours.error, f"stock fails ({stock.error}), ours does not"
            return Cell("stock fails", note=first_line(ours.error))
        if ours.error:
            assert ours.refused and row.refused and row.refused in ours.error, ours.error
            return Cell("refused", note=first_line(ours.error))
        return self._compared(row, subject, stock, ours)

    def _compared(self, row: Row, subject: Subject, stock: Side, ours: Side) -> Cell:
        assert stock.latent is not None and ours.latent is not None, "there is nothing to compare"
        difference = apart(ours.latent, stock.latent)
        note = path_of(ours.report, row)
        assert difference <= TOLERANCE, f"SILENT: {difference:.2e} from stock; {note}"
        if row.skips:
            assert ours.report["forwards"] < row.widgets["steps"], f"no step was left out; {note}"
        if row.base is not None:
            effect = apart(stock.latent, self._base(row.base, row, subject)) > TOLERANCE
            expected = subject.kind not in row.inert
            assert effect == expected, f"the node {'has an' if effect else 'has no'} effect in stock"
            if not effect:
                return Cell("no effect natively either", difference, note)
        return Cell("equal", difference, note)

    def _base(self, recipe: Recipe, row: Row, subject: Subject) -> torch.Tensor:
        """Stock's latent for the graph without the node."""
        key = (recipe, subject.file, json.dumps(row.widgets))
        if key not in self._bases:
            graph = Shared()
            link = self._built(graph, recipe, row, subject, ours=False)
            side = self._side(graph, link, self.server.run(graph.nodes))
            assert side.latent is not None, side.error
            self._bases[key] = side.latent
        return self._bases[key]

    def _both(self, row: Row, subject: Subject) -> tuple[Side, Side]:
        """Stock and ours, from one prompt unless it fails; then each from its own."""
        graph = Shared()
        links = [self._built(graph, row.build, row, subject, ours) for ours in (False, True)]
        done = self.server.run(graph.nodes)
        if done.error is None:
            stock, ours = (self._side(graph, link, done) for link in links)
        else:
            stock, ours = (self._alone(row, subject, ours) for ours in (False, True))
        return stock, ours

    def _alone(self, row: Row, subject: Subject, ours: bool) -> Side:
        graph = Shared()
        link = self._built(graph, row.build, row, subject, ours)
        return self._side(graph, link, self.server.run(graph.nodes))

    def _built(self, graph: Shared, recipe: Recipe, row: Row, subject: Subject, ours: bool) -> Link | None:
        """The node that saves what is to be compared; on our side with a report beside it."""
        latent = recipe(Scene(graph, subject, self.info, ours, row.widgets))
        if latent is None:
            return None
        if ours:
            graph.add("OutboardReport", latent=latent)
        return saved(graph, latent, "matrix")

    def _side(self, graph: Shared, link: Link | None, done: Outcome) -> Side:
        if done.error is not None:
            return Side(error=done.error["exception_message"], kind=done.error["exception_type"])
        if link is None:
            return Side()
        latent = load_file(self.server.latent_path(done, link[0]))["latent_tensor"]
        shown = graph.nodes[link[0]]["inputs"]["samples"]
        reports = [
            done.text(name)
            for name, node in graph.nodes.items()
            if node["class_type"] == "OutboardReport" and node["inputs"]["latent"] == shown
        ]
        return Side(latent, json.loads(reports[0]) if reports else {})


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value of `other`."""
    return float((one - other).abs().max() / other.abs().max())


def path_of(report: Mapping[str, Any], row: Row) -> str:
    """`whole loop`, or `per step (reason)`; with what a row of a cache has left out."""
    path = "whole loop" if report["path"] == "whole_loop" else f"per step ({report['reason']})"
    return f"{path}, {report['forwards']} of {row.widgets['steps']} forwards" if row.skips else path


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
