"""The step cache under loops that run elsewhere: each call has its place by its sigma, never by its order."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import harness
from cached_runs import BALANCED, STEPS, THRESHOLD, called, report, request, sampled, wrapped
from outboard.engine.cache.config import CacheConfig
from outboard.engine.cache.controller import installed
from outboard.engine.demo.assets import MODEL
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.step_cache import Caches
from outboard.engine.rank.steps import Account, Accounts
from outboard.protocol.errors import OutOfMemoryError
from outboard.protocol.messages.cache import CacheReport, Schedule
from outboard.protocol.messages.client import Predict
from outboard.protocol.torch import from_wire, pack_tree, to_wire


class Stepper:
    """One user's per-step euler run at cfg 3, call by call."""

    def __init__(self, accounts: Accounts, model: Model, session: str, digit: int, **more: Any) -> None:
        self.accounts, self.model, self.session = accounts, model, session
        self.sigmas = torch.linspace(1, 0, STEPS + 1)
        self.x = harness.noise(digit)
        sides = [from_wire_tree(harness.branch(None)), from_wire_tree(harness.branch(digit))]
        joined = {name: torch.cat([side[name] for side in sides]) for name in sides[0]}
        self.conditioning = pack_tree(joined)
        self.fields = {"cache": THRESHOLD, **more}
        self.schedule = Schedule(sampler="euler", sigmas=to_wire(self.sigmas))

    def request(self, index: int) -> Predict:
        both = torch.cat([self.x, self.x])
        base = harness.predict("run", float(self.sigmas[index]))
        fields = {
            "x": to_wire(both),
            "timestep": to_wire(self.sigmas[index].repeat(2)),
            "branches": ["1.n", "0.p"],
            "conditioning": self.conditioning,
            "schedule": self.schedule,
            **self.fields,
        }
        return base.model_copy(update=fields)

    def step(self, index: int) -> None:
        request = self.request(index)
        account = self.accounts.open(self.session, request, self.model)
        v, _ = called(request, self.model, account)
        negative, positive = v.float().chunk(2)
        guided = negative + 3.0 * (positive - negative)
        self.x = self.x + (self.sigmas[index + 1] - self.sigmas[index]) * guided

    def close(self) -> CacheReport:
        account = self.accounts.close(self.session, "run")
        assert account is not None
        found = account.report(Alone(), 0).cache
        assert found is not None
        return found

    def alone(self) -> tuple[Tensor, CacheReport]:
        for index in range(STEPS):
            self.step(index)
        return self.x, self.close()


def from_wire_tree(branch: Any) -> dict[str, Tensor]:
    return {name: from_wire(value).clone() for name, value in branch.conditioning.items()}


def opened() -> Accounts:
    return Accounts(Caches(CacheConfig()))


def test_two_users_step_by_step_are_as_if_each_were_alone(model: Model) -> None:
    alone = [Stepper(opened(), model, "a", digit).alone() for digit in (3, 7)]
    accounts = opened()
    users = [Stepper(accounts, model, session, digit) for session, digit in (("a", 3), ("b", 7))]
    for index in range(STEPS):
        for user in users:
            user.step(index)
    for user, (latent, expected) in zip(users, alone, strict=True):
        found = user.close()
        assert torch.equal(user.x, latent)
        assert sum(found.reused) > 4
        assert found.reused == expected.reused
        assert found.residuals == expected.residuals


def test_both_paths_decide_alike(model: Model) -> None:
    latent, stepped = Stepper(opened(), model, "a", 3).alone()
    noise = harness.noise(3)
    whole = sampled(request(THRESHOLD, noise=to_wire(noise), latent=to_wire(torch.zeros_like(noise))), model)
    assert stepped.reused == report(whole).reused
    assert float((whole.latent - latent).abs().max()) <= 1e-4


def test_a_session_that_ends_takes_its_runs_along(model: Model) -> None:
    accounts = opened()
    user, other = Stepper(accounts, model, "a", 3), Stepper(accounts, model, "b", 3)
    user.step(0)
    other.step(0)
    accounts.end_session("a")
    cache = installed(model)
    assert cache is not None
    assert cache.nbytes > 0
    accounts.end_session("b")
    assert cache.nbytes == 0


def fail(*_: Any) -> None:
    raise RuntimeError("after all blocks")


def test_a_failed_call_forgets_the_run_and_the_next_computes(model: Model) -> None:
    user = Stepper(opened(), model, "a", 3)
    for index in range(6):
        user.step(index)
    broken = model.module.get_submodule("norm_out").register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="after all blocks"):
        user.step(6)
    broken.remove()
    assert not wrapped(model)
    user.step(6)
    assert user.close().computed[6] == 2


def test_a_call_made_in_parts_for_memory_keeps_its_rows(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = Stepper(opened(), model, "a", 3).alone()
    predicted = Model.predict

    def within(self: Model, x: Tensor, timestep: Tensor, conditioning: Any) -> Tensor:
        if len(x) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return predicted(self, x, timestep, conditioning)

    monkeypatch.setattr(Model, "predict", within)
    _, found = Stepper(opened(), model, "a", 3).alone()
    assert found.reused == expected.reused


def test_a_call_that_never_fits_leaves_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    user = Stepper(opened(), model, "a", 3)
    user.step(0)
    monkeypatch.setattr(Model, "predict", never)
    with pytest.raises(OutOfMemoryError):
        user.step(1)
    assert not wrapped(model)


def test_a_run_without_schedule_or_branches_is_computed_and_says_so(model: Model) -> None:
    blind = Stepper(opened(), model, "a", 3, schedule=None)
    latent, found = blind.alone()
    plain = Stepper(opened(), model, "a", 3, cache=None)
    for index in range(STEPS):
        plain.step(index)
    assert torch.equal(latent, plain.x)
    assert "does not say its sigmas" in found.notes[0]
    _, nameless = Stepper(opened(), model, "a", 3, branches=[]).alone()
    assert sum(nameless.computed) == 0
    assert "did not say whose rows" in nameless.notes[0]


def test_an_obstacle_holds_even_when_forced(model: Model) -> None:
    user = Stepper(opened(), model, "a", 3, cache=BALANCED.model_copy(update={"force": True}))
    user.schedule = user.schedule.model_copy(update={"objection": "tiles may be several pictures."})
    _, found = user.alone()
    assert found.notes == ["Step cache off: tiles may be several pictures."]
    assert found.values == {}


def test_a_model_that_is_unloaded_in_between_is_let_go(model: Model) -> None:
    accounts = opened()
    first = load(MODEL, dtype=torch.float32, device=torch.device("cpu"))
    user = Stepper(accounts, first, "a", 3)
    for index in range(5):
        user.step(index)
    gone = weakref.ref(first)
    user.model = model
    del first
    gc.collect()
    assert gone() is None, "the open run kept the model alive"
    for index in range(5, STEPS):
        user.step(index)
    found = user.close()
    assert sum(found.computed) + sum(found.reused) == 2 * STEPS
    assert found.computed[5] == 2
    assert any("loaded anew" in note for note in found.notes)


def test_an_account_of_no_cache_reports_none(model: Model) -> None:
    account = Account("digits", "flux1", "float32", torch.device("cpu"))
    called(harness.predict("r"), model, account)
    assert account.report(Alone(), 0).cache is None
