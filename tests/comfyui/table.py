"""What became of each template, as a line of the test summary and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import pytest

TITLES = {
    "run": "runs",
    "refused": "refused by name",
    "foreign": "other family",
    "absent": "not in this ComfyUI",
}
HEAD = """# Official templates

The MODEL path of each official ComfyUI template for our families (loaders, model nodes, guider, scheduler,
sampler, with their widgets), run in a real ComfyUI with *Use Outboard for every diffusion model* on. Each
file is a small random one of its family under its own name, in bf16, or in plain, scaled or described
fp8 as the name tells (int8 is not imitated); text, latents and pictures are stand-ins of the right shapes.

A template that is refused by name runs once the named nodes are taken out. "Left out" are nodes on the way
that need a part these runs do not have. Templates of other families stay with the stock loader.

"""


@dataclass(frozen=True)
class Row:
    """One template. note: the path it took, or why it took none; difference: from stock ComfyUI's latents."""

    outcome: Literal["run", "refused", "foreign", "absent"]
    note: str
    refused: Iterable[str] = ()
    dropped: Iterable[str] = ()
    difference: float = 0.0


@dataclass
class Table:
    rows: dict[str, Row] = field(default_factory=dict)

    def add(self, name: str, row: Row) -> None:
        self.rows[name] = row

    @property
    def difference(self) -> float:
        return max((row.difference for row in self.rows.values()), default=0.0)

    def line(self) -> str:
        counts = Counter(row.outcome for row in self.rows.values())
        covered = counts["run"] + counts["refused"]
        return (
            f"{counts['run']} run, {counts['refused']} refused by name, of {covered} of our families; "
            f"{counts['foreign']} of other families, {counts['absent']} not in this ComfyUI"
        )

    def page(self) -> str:
        lines = [
            f"| {name} | {TITLES[row.outcome]} | {', '.join(row.refused)} | {row.note} | "
            f"{', '.join(sorted(row.dropped))} |"
            for name, row in sorted(self.rows.items())
        ]
        head = "| template | outcome | refused | path | left out |\n|---|---|---|---|---|\n"
        return f"{HEAD}{self.line()}.\n\n{head}" + "\n".join(lines) + "\n"


TABLE = pytest.StashKey[Table]()
