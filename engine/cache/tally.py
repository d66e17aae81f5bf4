"""What the cache did in one run: the numbers of its report."""

from __future__ import annotations

from dataclasses import dataclass, field

from .plan import Need, Plan
from .state import Key


@dataclass(eq=False)
class Tally:
    """Counts of one run. A row is one row of one forward, a block one block computed for one row.

    decisions   by branch and row: of each forward in turn, its step and whether it was reused
    distances   of each forward that measured some, its step and the largest of its rows
    notes       what the user should know: settings without effect, memory that was short
    """

    forwards: int = 0
    rows_computed: int = 0
    rows_reused: int = 0
    blocks_computed: int = 0
    blocks_total: int = 0
    peak_bytes: int = 0
    decisions: dict[Key, list[tuple[int, bool]]] = field(default_factory=dict)
    distances: list[tuple[int, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def count(self, plan: Plan, step: int, needs: dict[Key, Need]) -> None:
        """One complete forward."""
        reused = sum(need is Need.REUSE for need in needs.values())
        self.forwards += 1
        self.rows_reused += reused
        self.rows_computed += len(needs) - reused
        self.blocks_total += plan.blocks * len(needs)
        self.blocks_computed += plan.blocks * len(needs) - (plan.last - plan.first + 1) * reused
        for key, need in needs.items():
            self.decisions.setdefault(key, []).append((step, need is Need.REUSE))

    def measure(self, step: int, distance: float | None) -> None:
        """A distance of one complete forward; None when none was measured."""
        if distance is not None:
            self.distances.append((step, distance))

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def hit_rate(self) -> float:
        """The part of rows that was reused, 0 to 1."""
        return self.rows_reused / max(1, self.rows_computed + self.rows_reused)
