"""Samplers and schedules against vectors recorded from a real ComfyUI."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from golden.folder import SUMMARY, entries, golden_root, read_json
from outboard.engine.sampling.call import Call
from outboard.engine.sampling.conditioning import Conditioning
from outboard.engine.sampling.flow import Flow
from outboard.engine.sampling.guidance import cfg_denoiser
from outboard.engine.sampling.inpaint import Inpaint, fit_mask
from outboard.engine.sampling.loop import SampleRequest, sample
from outboard.engine.sampling.noise import NoiseSource, initial_noise
from outboard.engine.sampling.samplers import SAMPLERS
from outboard.engine.sampling.schedules import discrete_flow_table, flux_table, simple_sigmas
from outboard.engine.sampling.step import Step

pytestmark = pytest.mark.golden

TOLERANCE = 1e-5
"""On max|ours - stock| / max|stock| over a whole latent."""

CALL_TOLERANCE = {"dpm_adaptive": 1e-5}
"""On the sigmas of the calls: step lengths come from small differences, which magnify the rounding of x0."""


@functools.cache
def description() -> dict[str, Any]:
    return read_json(entries("sampling_description")[0]["path"])


@functools.cache
def tensors(kind: str) -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = {}
    for entry in entries(kind):
        with safe_open(golden_root() / entry["path"], "pt") as file:
            loaded |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return loaded


def recorded_runs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (output tensor, sampler, everything recorded) for every run in the description."""
    for sampler, cases in description()["samplers"].items():
        for case, record in cases.items():
            yield f"out.{case}.{sampler}", sampler, description()["cases"][case] | record
    for name, record in description()["extra"].items():
        yield f"out.extra.{name}", record["sampler"], record


def compared_runs() -> list[Any]:
    return [pytest.param(*run, id=run[0]) for run in recorded_runs() if run[1] in SAMPLERS]


class RecordedDenoiser:
    """The closed-form network of the recording, which keeps the sigma and the branches of each call."""

    def __init__(self) -> None:
        self.sigmas: list[float] = []
        self.branches: set[tuple[int, ...]] = set()

    def __call__(self, x: Tensor, sigma: Tensor, conditioning: Conditioning, call: Call) -> Tensor:
        scale: Tensor = conditioning["a"]
        constant: Tensor = conditioning["k"]
        self.sigmas.append(float(sigma[0]))
        rows = len(x) // (2 if len(set(conditioning["branch"].tolist())) == 2 else 1)
        self.branches.add(tuple(conditioning["branch"][::rows].tolist()))
        shape = (-1, *[1] * (x.ndim - 1))
        u = x * (1.0 - 0.5 * sigma.reshape(shape))
        return (u / torch.sqrt(u * u + 1.0)) * scale.reshape(shape) + constant * 0.3


def conditioning_of(name: str, branch: int, latent: Tensor) -> Conditioning:
    described = description()["denoiser"][name]
    suffix = "5" if latent.ndim == 5 else "16" if latent.shape[1] == 16 else ""
    constant = tensors("sampling")[described["k"] + suffix]
    return {"a": torch.tensor([described["a"]]), "k": constant, "branch": torch.tensor([branch])}


def latent_of(record: dict[str, Any]) -> Tensor:
    zeros = re.fullmatch(r"zeros\[([\d, ]+)\]", record["latent"])
    if zeros:
        return torch.zeros([int(size) for size in zeros[1].split(",")])
    return tensors("sampling")[record["latent"]]


def noise_of(record: dict[str, Any], latent: Tensor) -> Tensor:
    named = record.get("noise", "")
    if named.startswith("zeros"):
        return torch.zeros_like(latent)
    return tensors("sampling")[named] if named else initial_noise(latent.shape, record["seed"])


def sigmas_of(record: dict[str, Any]) -> Tensor:
    """Return the sigmas the run went through: its schedule, cut as the record says, or its own list."""
    sigmas = torch.tensor(record["sigmas"])
    if "last_step" in record and record["last_step"] < len(sigmas) - 1:
        sigmas = sigmas[: record["last_step"] + 1].clone()
        if record["force_full_denoise"]:
            sigmas[-1] = 0
    sigmas = sigmas[record.get("start_step", 0) :]
    if "scheduler" not in record and float(sigmas[1]) not in record["call_sigmas"][:2]:
        sigmas = torch.tensor([*record["call_sigmas"], 0.0])
    return sigmas


def affine_of(record: dict[str, Any]) -> tuple[float, float]:
    """Return the shift and factor of the record's latent format: model = (x - shift) * factor."""
    affine = re.search(r"\(x-([\d.]+)\)\*([\d.]+)", record.get("latent_format", ""))
    return (float(affine[1]), float(affine[2])) if affine else (0.0, 1.0)


def flow_of(record: dict[str, Any]) -> Flow:
    info = description()["model_sampling"][record.get("model_sampling", "flow_s3_m1000")]["info"]
    shift = math.exp(info["shift"]) if "ModelSamplingFlux" in info["bases"] else info["shift"]
    return Flow(info["multiplier"] or 1.0, info["noise_scale"] or 1.0, shift)


def request_of(sampler: str, record: dict[str, Any]) -> SampleRequest:
    latent = latent_of(record)
    shift, factor = affine_of(record)
    mask = record.get("mask")
    return SampleRequest(
        sampler=sampler,
        sigmas=sigmas_of(record),
        noise=noise_of(record, latent),
        latent=(latent - shift) * factor if latent.any() else latent,
        seed=record["seed"],
        flow=flow_of(record),
        inpaint=Inpaint(fit_mask(tensors("sampling")[mask], latent.shape)) if mask else None,
    )


@pytest.fixture(scope="module")
def worst(pytestconfig: pytest.Config) -> Iterator[dict[str, float]]:
    """Collect the worst error of each sampler, and report them at the end."""
    errors: dict[str, float] = {}
    yield errors
    report(pytestconfig, "worst error: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()))


def relative_error(ours: Tensor, stock: Tensor) -> float:
    return float((ours - stock).abs().max() / stock.abs().max())


@pytest.mark.parametrize(("output", "sampler", "record"), compared_runs())
def test_a_run_equals_stock(
    output: str, sampler: str, record: dict[str, Any], worst: dict[str, float]
) -> None:
    request, network, steps = request_of(sampler, record), RecordedDenoiser(), list[Step]()
    guided = cfg_denoiser(
        network,
        conditioning_of("cond", 0, request.latent),
        conditioning_of("uncond", 1, request.latent),
        cfg=record["cfg"],
        rows=len(request.latent),
    )
    x = sample(request, guided, callback=steps.append)
    shift, factor = affine_of(record)
    error = relative_error(x / factor + shift, tensors("sampling")[output])
    worst[sampler] = max(error, worst.get(sampler, 0.0))
    assert network.sigmas == pytest.approx(record["call_sigmas"], rel=CALL_TOLERANCE.get(sampler, 1e-6))
    assert guided.forwards == record["model_calls"]
    assert sorted(network.branches) == sorted(map(tuple, record["cond_or_uncond"]))
    assert [step.index for step in steps] == list(range(record["callbacks"]))
    assert error <= TOLERANCE


@functools.cache
def model_samplings() -> dict[str, dict[str, Any]]:
    with safe_open(golden_root() / entries("schedulers")[0]["path"], "pt") as file:
        recorded: dict[str, Any] = json.loads(file.metadata()["model_samplings"])
    return {name: entry["info"] for name, entry in recorded.items()}


def table_of(model_sampling: str) -> Tensor:
    info = model_samplings()[model_sampling]
    if "ModelSamplingFlux" in info["bases"]:
        return flux_table(info["shift"])
    return discrete_flow_table(info["shift"], info["multiplier"])


def schedules(scheduler: str) -> list[str]:
    return [key for key in tensors("schedulers") if f"/{scheduler}/" in key]


@pytest.mark.parametrize("model_sampling", model_samplings())
def test_a_sigma_table_equals_stock(model_sampling: str) -> None:
    stock = tensors("schedulers")
    assert torch.equal(table_of(model_sampling), stock[f"{model_sampling}/table"])
    sigma, timestep = stock[f"{model_sampling}/timestep_of_sigma"]
    multiplier = model_samplings()[model_sampling].get("multiplier") or 1.0
    assert torch.equal(Flow(multiplier).timestep(sigma), timestep)


@pytest.mark.parametrize("key", schedules("simple"))
def test_a_simple_schedule_equals_stock(key: str) -> None:
    model_sampling, _, steps, denoise, sampler = key.split("/")
    ours = simple_sigmas(
        table_of(model_sampling),
        int(steps),
        denoise=float(denoise),
        drop_penultimate=sampler == "dpm_2",
    )
    assert torch.equal(ours, tensors("schedulers")[key])


@pytest.mark.parametrize("key", [key for key in tensors("sampling") if key.startswith("noise.seed")])
def test_initial_noise_equals_stock(key: str) -> None:
    stock = tensors("sampling")[key]
    seed = int(key.split(".")[1].removeprefix("seed"))
    assert torch.equal(initial_noise(stock.shape, seed), stock)


def test_noise_of_a_batch_index_equals_stock() -> None:
    described = description()["noise"]["noise.batch_index"]
    ours = initial_noise(described["latent"], described["seed"], described["batch_index"])
    assert torch.equal(ours, tensors("sampling")["noise.batch_index"])


def test_noise_between_steps_equals_stock() -> None:
    (key,) = (key for key in tensors("sampling") if key.startswith("rng.default_noise_sampler"))
    stock = tensors("sampling")[key]
    source = NoiseSource(int(key.rpartition("seed")[2]), torch.zeros(stock.shape[1:]))
    assert torch.equal(torch.stack([source() for _ in stock]), stock)


def test_every_recorded_run_is_compared_or_reported(
    pytestconfig: pytest.Config, record_testsuite_property: Any
) -> None:
    runs = list(recorded_runs())
    missing = sorted({sampler for _, sampler, _ in runs} - set(SAMPLERS))
    record_testsuite_property("samplers_not_supported", " ".join(missing))
    counted = f"{len(compared_runs())} of {len(runs)} recorded runs"
    report(pytestconfig, f"samplers: {counted} compared with stock; not in the engine: {', '.join(missing)}")
    report(pytestconfig, f"schedules: simple compared with stock; not in the engine: {others()}")
    assert {sampler for _, sampler, _ in runs} >= set(SAMPLERS)


def others() -> str:
    names = {key.split("/")[1] for key in tensors("schedulers") if key.count("/") == 4}
    return ", ".join(sorted(names - {"simple"}))


def report(config: pytest.Config, line: str) -> None:
    """Hand a line to the folder's terminal summary."""
    config.stash.setdefault(SUMMARY, []).append(line)
