from __future__ import annotations

import pytest
import yaml

from outboard.engine.parallel.layout import Layout
from outboard.engine.parallel.yaml_form import read_section
from outboard.protocol.errors import InvalidRequestError

ONE_AXIS = """
parallelism_config:
  ulysses_size: auto
  parallel_kwargs:
    attention_backend: native
    extra_parallel_modules: ["text_encoder", "vae"]
"""


def read(text: str, ranks: int = 0) -> Layout | None:
    return read_section(yaml.safe_load(text), "f.yaml", ranks)


def section(text: str) -> str:
    return "parallelism_config: {" + text + "}"


@pytest.mark.parametrize(
    ("text", "ranks", "layout"),
    [
        (ONE_AXIS, 4, Layout(ulysses=4)),
        (section("ulysses_size: auto, tp_size: 2"), 8, Layout(ulysses=4, tp=2)),
        (section("ulysses_size: 2, ring_size: 2, tp_size: 2"), 0, Layout(ulysses=2, ring=2, tp=2)),
        (section("tp_size: auto, attention_backend: native, ulysses_anything: true"), 2, Layout(tp=2)),
        (section("ulysses_size: 2, ring_size: null"), 0, Layout(ulysses=2)),
    ],
)
def test_the_published_forms_are_layouts(text: str, ranks: int, layout: Layout) -> None:
    assert read(text, ranks) == layout


def test_what_stays_in_comfyui_is_told(caplog: pytest.LogCaptureFixture) -> None:
    read(ONE_AXIS, 2)
    assert "parallelism_config.extra_parallel_modules has no effect" in caplog.text


def test_a_file_without_the_section_leaves_the_choice() -> None:
    assert read("cache_config: {}", 2) is None


@pytest.mark.parametrize(
    ("text", "ranks", "complaint"),
    [
        (section("ulysses_size: auto"), 0, "ulysses auto is what the ranks leave"),
        (
            section("ulysses_size: auto, ring_size: auto"),
            4,
            "one size can be auto, not ulysses and ring",
        ),
        (section("ulysses_size: auto, tp_size: 3"), 4, "4 ranks do not divide by tp 3"),
        (section("ulysses_size: 0"), 4, r"ulysses_size: 0 must be a whole number"),
        (section("tp_size: true"), 4, r"tp_size: True must be a whole number"),
        (section("ulysses_float8: true"), 2, "ulysses_float8: there is no such exchange"),
        (section("attention_backend: sage"), 2, "'native' is the only one there is"),
        (section("pipeline_size: 2"), 2, "pipeline_size: there is no such key"),
        ("parallelism_config: 4", 2, "must hold keys and values"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, ranks: int, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        read(text, ranks)
    assert caught.value.message.startswith("f.yaml: parallelism_config")
