"""Two ranks behind one engine: the picture of one rank, and every fault of one of them told in seconds."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import adapted
import harness
from outboard.engine.launch import Engine
from outboard.protocol.client import Client
from outboard.protocol.errors import EngineError, EngineStartError, UnsupportedRequestError
from outboard.protocol.messages import Message
from outboard.protocol.messages.cache import CacheReport, CacheSettings
from outboard.protocol.messages.client import CloseRun
from outboard.protocol.messages.common import Mask, Report
from outboard.protocol.messages.engine import Closed, Prediction, Result, Step
from outboard.protocol.torch import from_wire, pack_tree, to_wire, unpack_tree

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

STEPS, LONG, TOLD = 8, 4000, 10.0
FAULTS = Path(__file__).parents[1] / "faults"
GUIDED: dict[str, Any] = {"cfg": 3.0, "negative": [harness.branch(None)]}
LAYOUTS = {
    "auto": ("--ranks=2",),
    "cfg 2": ("--cfg=2",),
    "ulysses 2": ("--sp=2",),
    "ring 2": ("--ring=2",),
    "tp 2": ("--tp=2",),
}


def masked() -> Mask:
    mask = torch.zeros_like(harness.noise())
    mask[..., : mask.shape[-1] // 2] = 1.0
    return Mask(mask=to_wire(mask))


def batch(rows: int) -> dict[str, Any]:
    start = harness.noise(rows=rows)
    return {"noise": to_wire(start), "latent": to_wire(torch.zeros_like(start))}


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guided": GUIDED,
    "two rows": {**GUIDED, **batch(2)},
    "three rows": batch(3),
    "ancestral": {**GUIDED, "sampler": "euler_ancestral"},
    "masked": {**GUIDED, "mask": masked()},
    "cached": {**GUIDED, "cache": CacheSettings(preset="balanced")},
}


@pytest.fixture
def engine_of(runtime: Path) -> Iterator[Any]:
    """Starts engines of the test's own, one after the other."""
    started: list[Engine] = []

    def start(*options: str) -> Engine:
        while started:
            started.pop().stop()
        started.append(harness.start(*options))
        return started[0]

    yield start
    for engine in started:
        engine.stop()
    assert [path for path in runtime.iterdir() if path.suffix == ".meeting"] == []


@pytest.fixture
def pair_of(engine_of: Any) -> Iterator[Callable[..., Client]]:
    """Clients of such engines."""
    opened: list[Client] = []

    def connect(*options: str) -> Client:
        opened.append(harness.connect(engine_of(*options)))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def drawn(client: Client, **changes: Any) -> Result:
    found = client.request(harness.run(STEPS, **changes))
    assert isinstance(found, Result)
    return found


def apart(one: Result, two: Result) -> float:
    first, second = from_wire(one.latent), from_wire(two.latent)
    return float((first - second).abs().max() / second.abs().max())


def states(client: Client) -> list[str]:
    return [rank.state for rank in harness.status(client).ranks]


def made(report: CacheReport | None) -> Any:
    return report and (report.computed, report.reused, report.hit_rates, report.blocks_computed)


def predicted(client: Client) -> tuple[torch.Tensor, Report]:
    """One call of a per-step run, of two rows."""
    one = harness.predict("by-step")
    text: dict[str, torch.Tensor] = unpack_tree(one.conditioning)
    both = pack_tree({name: torch.cat([value] * 2) for name, value in text.items()})
    given = {"x": to_wire(harness.noise(rows=2)), "timestep": to_wire(torch.tensor([0.7, 0.7]))}
    found = client.request(one.model_copy(update={**given, "conditioning": both}))
    closed = client.request(CloseRun(run="by-step"))
    assert isinstance(found, Prediction) and isinstance(closed, Closed) and closed.report is not None
    return from_wire(found.v).clone(), closed.report


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_draw_what_one_draws(layout: str, pair_of: Any, client: Client) -> None:
    pair = pair_of(*LAYOUTS[layout])
    for name, changes in RUNS.items():
        found, alone = drawn(pair, **changes), drawn(client, **changes)
        assert apart(found, alone) <= 1e-5, name
        report = found.report
        assert report.world_size == len(report.peak_bytes) == 2
        assert layout in ("auto", report.layout)
        assert (report.steps, report.forwards) == (alone.report.steps, alone.report.forwards)
        assert made(report.cache) == made(alone.report.cache), name


@pytest.mark.parametrize("layout", ["cfg 2", "ulysses 2"])
def test_step_by_step_it_is_the_same(layout: str, pair_of: Any, client: Client) -> None:
    pair = pair_of(*LAYOUTS[layout])
    (found, report), (alone, _) = predicted(pair), predicted(client)
    assert float((found - alone).abs().max() / alone.abs().max()) <= 1e-5
    assert (report.layout, report.world_size, report.steps, report.forwards) == (layout, 2, 1, 1)


def test_loras_come_and_go_and_layouts_change_without_new_processes(pair_of: Any, client: Client) -> None:
    pair = pair_of("--ranks=2")
    before = [rank.pid for rank in harness.status(pair).ranks]
    first = drawn(pair)
    lora = adapted.lora(1, every=6)
    for changes in ({}, GUIDED, {}):
        found = drawn(pair, adapters=pair.adapt(lora), **changes)
        alone = drawn(client, adapters=client.adapt(lora), **changes)
        assert found.report.adapters == alone.report.adapters > 0
        assert apart(found, alone) <= 1e-5
        assert found.report.layout == ("cfg 2" if changes else "ulysses 2")
        assert apart(alone, first) > 1e-3
    assert torch.equal(from_wire(drawn(pair).latent), from_wire(first.latent))
    assert [rank.pid for rank in harness.status(pair).ranks] == before


def test_weights_that_were_cut_wear_no_lora_and_say_so(pair_of: Any) -> None:
    pair = pair_of("--tp=2")
    with pytest.raises(UnsupportedRequestError, match="cut by tp 2"):
        drawn(pair, adapters=pair.adapt(adapted.lora(1, every=6)))
    assert isinstance(drawn(pair), Result)


def test_a_layout_that_the_network_does_not_allow_is_refused_and_nothing_is_lost(pair_of: Any) -> None:
    trio = pair_of("--tp=3")
    with pytest.raises(UnsupportedRequestError, match="2 heads, which do not divide by tp 3") as caught:
        drawn(trio)
    assert "ulysses 3" in caught.value.hint
    # The first rank answers; the others may be a moment later, and the group is busy until all have ended.
    harness.wait_until(lambda: states(trio) == ["ready"] * 3, 2, "three ranks ready for the next request")


def test_ranks_that_do_not_make_the_layout_are_refused_with_the_numbers(engine_of: Any) -> None:
    with pytest.raises(EngineStartError, match="ulysses 2 x tp 2 = 4 does not go with 3 ranks"):
        engine_of("--ranks=3", "--sp=2", "--tp=2")


class Interrupt(Exception):  # noqa: N818 - the word ComfyUI uses
    """What the user's red button raises in these tests."""


def test_a_cancel_is_over_within_one_step_on_both_ranks(pair_of: Any) -> None:
    pair = pair_of("--ranks=2")
    drawn(pair)
    seen: list[int] = []

    def stop(event: Message) -> None:
        if isinstance(event, Step):
            seen.append(event.index)
            if event.index == 1:
                raise Interrupt

    for _ in range(3):
        seen.clear()
        with pytest.raises(Interrupt):
            pair.request(harness.run(LONG), on_event=stop)
        assert seen[-1] <= 3
    assert isinstance(drawn(pair), Result)
    assert harness.status(pair).counters["groups_started"] == 1


def hurt(client: Client, act: Callable[[], None]) -> tuple[float, EngineError]:
    """`act` at the third step of a long run; seconds until the run's error, and the error."""
    at = [0.0]

    def hear(event: Message) -> None:
        if isinstance(event, Step) and event.index == 2:
            at[0] = time.monotonic()
            act()

    with pytest.raises(EngineError) as caught:
        client.request(harness.run(LONG), on_event=hear)
    return time.monotonic() - at[0], caught.value


def killed(name: str) -> Callable[[Client, Path], None]:
    def act(client: Client, _: Path) -> None:
        os.kill(harness.status(client).ranks[1].pid, getattr(signal, name))

    return act


def fault(_: Client, file: Path) -> None:
    file.write_text("step")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (killed("SIGKILL"), r"Rank 1 of the engine died \(exit code -9\)"),
        (killed("SIGSTOP"), r"Rank 1 of the engine \(pid \d+\) has said nothing for 6 s"),
        (fault, r"Rank 1: .* a fault of the test, between two collectives"),
    ],
    ids=["killed", "stopped", "raises"],
)
def test_a_fault_of_rank_1_is_told_in_time_and_the_next_run_is_right(
    act: Callable[[Client, Path], None],
    words: str,
    pair_of: Any,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "fault"
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("OUTBOARD_TEST_FAULT", str(file))
    pair = pair_of("--ranks=2")
    first = drawn(pair)
    ranks = [psutil.Process(rank.pid) for rank in harness.status(pair).ranks]
    seconds, error = hurt(pair, lambda: act(pair, file))
    assert seconds < TOLD
    assert re.search(words, str(error)), str(error)
    assert error.details["rank"] == "1"
    harness.wait_until(lambda: all(map(harness.gone, ranks)), TOLD, "the old ranks are gone")
    assert torch.equal(from_wire(drawn(pair).latent), from_wire(first.latent))
    assert apart(first, drawn(client)) <= 1e-5


def test_a_rank_that_cannot_join_is_told_in_time_and_leaves_nothing(
    engine_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fault"
    file.write_text("init")
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("OUTBOARD_TEST_FAULT", str(file))
    began = time.monotonic()
    engine = engine_of("--ranks=2")
    with pytest.raises(EngineStartError, match=r"(?s)Rank 1 of the engine died.*while joining"):
        harness.connect(engine)
    assert time.monotonic() - began < TOLD
    assert engine.process is not None
    pids = harness.family(engine.process.pid)
    harness.wait_until(lambda: all(map(harness.gone, pids[1:])), TOLD, "no rank is left")
    file.unlink()
    harness.wait_until(lambda: comes_up(engine), 60.0, "the engine starts its ranks again")


def comes_up(engine: Engine) -> bool:
    try:
        pair = harness.connect(engine)
    except EngineStartError:
        return False
    found = drawn(pair)
    pair.close()
    return found.report.world_size == 2
