"""What became of every cell of the node matrix, as lines of the test summary and as a page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from comfyui.matrix_bench import Cell
from comfyui.matrix_rows import FAMILIES, ROWS

HEAD = """# Stock nodes around an Outboard MODEL

Each node in a real ComfyUI, on a small FLUX.1 and a small Wan 2.1, in fp32: the same graph with
Load Diffusion Model and with Outboard UNET Loader, in one server.

- **equal**: the latents differ by at most 1e-5 of the largest value.
- **no effect natively either**: equal, and stock's latent is that of the graph without the node.
- **stock fails**: with the stock loader the graph ends in an error, and with ours too.
- **refused**: the graph ends in an error that names the node.

The difference is the largest over a latent, as a share of the largest value. "Whole loop" and "per step"
are the paths that README.md describes. The last column says why a run went step by step, or what the error
with our loader said.

"""
ABSENT = Cell("not in this version")
OTHER = Cell("not for this family")


@dataclass
class Matrix:
    """Cells by version, family and row; `missing` are versions that could not run, with the reason."""

    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, version: str, family: str, title: str, cell: Cell) -> None:
        self.cells[version, family, title] = cell

    @property
    def versions(self) -> list[str]:
        return list(dict.fromkeys(version for version, _, _ in self.cells))

    def complete(self) -> bool:
        """Whether every row ran on both families in every version that is there."""
        return bool(self.cells) and len(self.cells) == len(self.versions) * len(FAMILIES) * len(ROWS)

    def summary(self) -> list[str]:
        """One line for each version."""
        return [self._line(version) for version in self.versions] + [
            f"{version}: NOT RUN: {reason}" for version, reason in self.missing.items()
        ]

    def _line(self, version: str) -> str:
        cells = [cell for key, cell in self.cells.items() if key[0] == version]
        counts = Counter(cell.result for cell in cells)
        largest = max((cell.difference or 0.0 for cell in cells), default=0.0)
        listed = ", ".join(f"{count} {result}" for result, count in counts.most_common())
        return f"{version}: {len(cells)} cells: {listed}; at most {largest:.1e} from stock"

    def page(self) -> str:
        notes = [f"- {self._line(version)}." for version in self.versions]
        notes += [f"- {version}: not run." for version in self.missing]
        lines = [HEAD + "\n".join(notes)]
        for family in FAMILIES:
            lines.append(f"\n## {family}\n")
            lines.append("| node | version | result | difference | path |\n|---|---|---|---|---|")
            lines += self._rows(family)
        return "\n".join(lines) + "\n"

    def _rows(self, family: str) -> Iterator[str]:
        """A line for each different outcome of a node, with the versions that share it."""
        for row in ROWS:
            alike: dict[tuple[str, str], list[str]] = defaultdict(list)
            for version in self.versions:
                cell = self.cells.get((version, family, row.title))
                if cell is not None and cell != OTHER:
                    alike[cell.result, cell.note].append(version)
            for (result, note), versions in alike.items():
                found = [self.cells[version, family, row.title].difference for version in versions]
                sizes = [difference for difference in found if difference is not None]
                size = f"{max(sizes):.1e}" if sizes else ""
                yield f"| {row.title} | {', '.join(versions)} | {result} | {size} | {note} |"


MATRIX = pytest.StashKey[Matrix]()
