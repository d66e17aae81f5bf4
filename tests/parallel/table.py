"""The page docs/parallel.md: the error of each subject under each layout."""

from __future__ import annotations

from typing import Any

LAYOUTS: dict[str, list[dict[str, int]]] = {
    "4": [
        {"dp": 2, "cfg": 2},
        {"dp": 2, "ulysses": 2},
        {"dp": 2, "ring": 2},
        {"dp": 2, "tp": 2},
        {"ulysses": 4},
        {"ulysses": 2, "tp": 2},
        {"cfg": 2, "ulysses": 2},
        {"ulysses": 2, "ring": 2},
    ],
    "3": [{"ulysses": 3}, {"ring": 3}, {"tp": 3}],
}
HEAD = """# Several devices

Each network shared out over several processes (gloo, CPU, fp32), against the same process alone: the norm of
the difference over the norm of the answer, the largest of all ranks. `dp 2` are two replicas that were asked
different things. A dash: the layout is refused, because heads or channels of that small network do not
divide; the refusal says what would work. Nothing here was run on NCCL. Written by the test run:

    OUTBOARD_WRITE_DOCS=1 scripts/test -m distributed tests/parallel

"""


def page(cells: dict[str, dict[str, Any]]) -> str:
    layouts = list(next(iter(cells.values())))
    lines = ["| call | " + " | ".join(layouts) + " |", "|---|" + "--:|" * len(layouts)]
    for name, row in sorted(cells.items()):
        lines.append(f"| {name} | " + " | ".join(_cell(row[layout]) for layout in layouts) + " |")
    return HEAD + "\n".join(lines) + "\n"


def _cell(found: Any) -> str:
    return f"{found:.0e}" if isinstance(found, float) else "-"
