"""The report of the step cache: counts of one run as its numbers, by step and by branch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ...protocol.messages.cache import CacheReport, Residual
from ..cache.decision import Counters, settle
from ..cache.plan import Need, Plan
from ..cache.settings import Settings
from ..cache.state import Key
from ..cache.tally import Tally
from .peers import Peers

Decision = tuple[str, int, bool]
"""A branch, a step, and whether one row of it was reused there."""
Distance = tuple[int, float]
"""A step, and how far it was from the last computed one."""


def cache_report(
    name: str, settings: Settings | None, plan: Plan | None, total: int, tallies: Sequence[Tally]
) -> CacheReport:
    """The counts of `tallies` together. `settings` and `plan` are None for a run that was not cached."""
    notes = list(dict.fromkeys(note for tally in tallies for note in tally.notes))
    if settings is None or plan is None:
        return CacheReport(preset=name, steps=max(total, 0), notes=notes)
    decisions = list(_decisions(tallies))
    reused = Counter(step for _, step, again in decisions if again)
    rows = Counter(step for _, step, _ in decisions)
    blocks, every = (
        sum(getattr(tally, f"blocks_{kind}") for tally in tallies) for kind in ("computed", "total")
    )
    return CacheReport(
        preset=name,
        values=plain(settings),
        steps=total,
        computed=[rows[step] - reused[step] for step in range(total)],
        reused=[reused[step] for step in range(total)],
        hit_rate=_rate(decisions),
        hit_rates=_by_branch(decisions),
        blocks_computed=blocks,
        blocks_total=every,
        saving=_share(every - blocks, every),
        saving_predicted=predicted(plan),
        residuals=list(_residuals(tallies)),
        peak_bytes=max(tally.peak_bytes for tally in tallies),
        notes=notes,
    )


def gathered(tallies: Sequence[Tally], plan: Plan, peers: Peers) -> Sequence[Tally]:
    """The tallies of all ranks as one, in which each row of each forward counts once.

    Ranks that share the tokens of a row have decided alike; those that share the rows of a call have
    different ones. Every rank gets the same.
    """
    if peers.world == 1:
        return tallies
    whole = Tally()
    for text in peers.texts(json.dumps(_told(tallies))):
        told = json.loads(text)
        for branch, row, made in told["decisions"]:
            whole.decisions.setdefault((branch, row), [(step, again) for step, again in made])
        distances = [(step, distance) for step, distance in told["distances"]]
        whole.distances = _largest(whole.distances, distances)
        whole.peak_bytes = max(whole.peak_bytes, told["peak_bytes"])
        for note in told["notes"]:
            whole.note(note)
    made = [again for rows in whole.decisions.values() for _, again in rows]
    whole.blocks_total = plan.blocks * len(made)
    whole.blocks_computed = whole.blocks_total - (plan.last - plan.first + 1) * sum(made)
    return [whole]


def _told(tallies: Sequence[Tally]) -> dict[str, Any]:
    decisions: dict[Key, list[tuple[int, bool]]] = {}
    for tally in tallies:
        for key, made in tally.decisions.items():
            decisions.setdefault(key, []).extend(made)
    return {
        "decisions": [[str(branch), row, made] for (branch, row), made in decisions.items()],
        "distances": [[step, distance] for tally in tallies for step, distance in tally.distances],
        "peak_bytes": max(tally.peak_bytes for tally in tallies),
        "notes": list(dict.fromkeys(note for tally in tallies for note in tally.notes)),
    }


def _largest(one: list[Distance], two: list[Distance]) -> list[Distance]:
    """Of each forward the larger distance; those of ranks that made other forwards are not compared."""
    if [step for step, _ in one] != [step for step, _ in two]:
        return one or two
    return [(step, max(first, second)) for (step, first), (_, second) in zip(one, two, strict=True)]


def steps_reused(report: CacheReport | None) -> int:
    """The steps of which every row was reused."""
    if report is None:
        return 0
    return sum(again > 0 and not new for new, again in zip(report.computed, report.reused, strict=True))


def predicted(plan: Plan) -> float:
    """The part of the blocks that is spared in a run whose distances are all below the threshold."""
    counters, reused = Counters(), 0
    for step in range(plan.total):
        need = settle(plan.need(step), counters, plan.settings) if step else Need.COMPUTE
        spared = need is not Need.COMPUTE
        reused += spared
        counters = counters.after(reused=spared, level=float(step))
    return _share(reused * (plan.last - plan.first + 1), plan.total * plan.blocks)


def plain(settings: Settings) -> dict[str, Any]:
    """`settings` as values of a message."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(settings).items()
    }


def _decisions(tallies: Iterable[Tally]) -> Iterable[Decision]:
    for tally in tallies:
        for (branch, _), made in tally.decisions.items():
            yield from ((str(branch), step, again) for step, again in made)


def _by_branch(decisions: Sequence[Decision]) -> dict[str, float]:
    names = dict.fromkeys(branch for branch, _, _ in decisions)
    return {name: _rate([made for made in decisions if made[0] == name]) for name in names}


def _residuals(tallies: Iterable[Tally]) -> Iterable[Residual]:
    for tally in tallies:
        for step, distance in tally.distances:
            # What was 0 before has no relative distance; a report holds finite numbers only.
            if math.isfinite(distance):
                yield Residual(step=step, distance=distance)


def _rate(decisions: Sequence[Decision]) -> float:
    return _share(sum(again for _, _, again in decisions), len(decisions))


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
