"""weight_dtype and quantised files through ComfyUI's own nodes: the latents of stock ComfyUI."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from comfyui import quantised
from comfyui.graphs import FLUX, Graph, Link, sampled
from comfyui.pairs import Build, Pair, run_one
from comfyui.server import ComfyServer

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

Compare = Callable[..., Pair]


def over(**widgets: Any) -> Build:
    def build(graph: Graph, model: Link) -> Link:
        return sampled(graph, model, *FLUX.texts(graph), FLUX.latent(graph), **widgets)

    return build


draw = over(cfg=3.0)


@pytest.mark.parametrize("weight_dtype", ["fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"])
def test_weights_rounded_to_fp8(compare: Compare, comfy: ComfyServer, weight_dtype: str) -> None:
    pair = compare(replace(FLUX, kind=weight_dtype), draw, "whole_loop", weight_dtype)
    plain, _ = run_one(comfy, "OutboardUNETLoader", FLUX.file, draw)
    assert not plain.allclose(pair.ours, rtol=1e-3), "nothing was rounded"


FILES = {
    quantised.PLAIN_FP8: {"float8_e4m3fn dequantised"},
    quantised.OLD_FP8: {"float8_e4m3fn dequantised"},
    quantised.MIXED: {f"{name} dequantised" for name in ("float8_e4m3fn", "float8_e5m2", "nvfp4", "mxfp8")},
    quantised.TABLE: {f"{name} dequantised" for name in ("float8_e4m3fn", "float8_e5m2", "nvfp4", "mxfp8")},
    quantised.INTEGERS: {"int8_tensorwise"},
}


@pytest.mark.parametrize("file", FILES)
def test_a_quantised_file(compare: Compare, file: str) -> None:
    steps, tolerance = (1, quantised.INTEGER_TOLERANCE) if file == quantised.INTEGERS else (3, FLUX.tolerance)
    subject = replace(FLUX, file=file, kind=file.removesuffix(".safetensors"), tolerance=tolerance)
    pair = compare(subject, over(cfg=3.0, steps=steps), "whole_loop")
    assert set(pair.report["low_bit_layers"]) == FILES[file]
    compare(subject, over(sampler_name="euler_cfg_pp", steps=steps), "per_step")


def test_a_quantised_file_whose_other_weights_are_rounded(compare: Compare) -> None:
    subject = replace(FLUX, file=quantised.OLD_FP8, kind="scaled and e5m2")
    compare(subject, draw, "whole_loop", "fp8_e5m2")


def test_a_gguf_file_is_listed_by_our_loader_alone(comfy: ComfyServer) -> None:
    def listed(loader: str) -> list[str]:
        schema: dict[str, Any] = comfy.get(f"/object_info/{loader}")[loader]["input"]["required"]
        kind, *more = schema["unet_name"]
        return list(more[0]["options"] if kind == "COMBO" else kind)

    ours, stock = listed("OutboardUNETLoader"), listed("UNETLoader")
    assert set(ours) - set(stock) == {quantised.GGUF}
    assert set(stock) <= set(ours)


def test_a_gguf_file_draws_what_its_values_draw(comfy: ComfyServer) -> None:
    blocks, report = run_one(comfy, "OutboardUNETLoader", quantised.GGUF, draw)
    values, _ = run_one(comfy, "UNETLoader", quantised.UNPACKED, draw)
    assert float((blocks - values).abs().max() / values.abs().max()) <= FLUX.tolerance
    assert json.loads(report)["low_bit_layers"].keys() == {"Q8_0 dequantised"}
