"""An engine that is configured with a step cache, from the command line to the report of a run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import harness
from outboard.engine.cache.choice import Choice
from outboard.engine.cache.config import CacheConfig
from outboard.engine.commands import serve
from outboard.engine.rank.cache_wish import config_from, wish_of
from outboard.protocol.client import Client
from outboard.protocol.errors import InvalidRequestError
from outboard.protocol.messages.cache import CacheReport, CacheSettings, Schedule
from outboard.protocol.messages.client import CloseRun, Run
from outboard.protocol.messages.engine import Closed, Result
from outboard.protocol.torch import from_wire

YAML = """
cache_config:
  Fn_compute_blocks: 1
  max_warmup_steps: 2
  residual_diff_threshold: 0.4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cache.yaml"
    path.write_text(YAML, encoding="utf-8")
    return path


def test_a_configured_engine_caches_whoever_says_nothing(runtime: Path, file: Path) -> None:
    engine = harness.start(f"--cache-dit-config={file}")
    client = harness.connect(engine)
    try:
        cached, cache = asked(client, harness.run(12))
        assert cache is not None
        assert cache.preset == str(file)
        assert sum(cache.reused) > 2
        own, none = asked(client, harness.run(12, cache=CacheSettings(preset="off")))
        assert none is None
        assert not torch.equal(own, cached)
    finally:
        client.close()
        engine.stop()


def test_an_engine_without_one_caches_on_request_alone(client: Client) -> None:
    never, none = asked(client, harness.run(12))
    on, cache = asked(client, harness.run(12, cache=CacheSettings(preset="balanced")))
    assert none is None
    assert cache is not None
    assert sum(cache.reused) > 2
    assert not torch.equal(on, never)
    again, _ = asked(client, harness.run(12))
    assert torch.equal(again, never)


def asked(client: Client, run: Run) -> tuple[torch.Tensor, CacheReport | None]:
    result = client.request(run)
    assert isinstance(result, Result)
    return from_wire(result.latent).clone(), result.report.cache


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": {"speed": 1}}, "no step cache setting 'speed'"),
        ({"values": {"taylorseer_order": 7}}, "taylorseer_order is 7"),
        ({"preset": "custom", "values": {"Fn_compute_blocks": 90}}, "leave none of the model's 3 blocks"),
    ],
)
def test_what_cannot_be_is_an_error_and_the_next_run_is_whole(
    client: Client, settings: dict[str, object], message: str
) -> None:
    wrong = CacheSettings.model_validate(settings)
    with pytest.raises(InvalidRequestError, match=message):
        client.request(harness.run(12, cache=wrong))
    schedule = Schedule(sampler="euler", sigmas=harness.run(12).sigmas)
    fields = {"cache": wrong, "branches": ["p"], "schedule": schedule}
    with pytest.raises(InvalidRequestError, match=message):
        client.request(harness.predict("wrong").model_copy(update=fields))
    closed = client.request(CloseRun(run="wrong"))
    assert isinstance(closed, Closed)
    assert closed.report is None
    assert asked(client, harness.run(3))[1] is None


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(arguments)


def test_a_file_that_says_nonsense_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("cache_config:\n  Fn_compute_block: 1\n", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="Fn_compute_block"):
        serve._config(options(f"--cache-dit-config={path}"))


def test_variables_reach_the_configuration(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("OUTBOARD_CACHE_PRESET", "fast")
    monkeypatch.setenv("OUTBOARD_CACHE_BUDGET", "1G")
    found = serve._config(options()).cache
    assert found is not None
    assert (found.primary, found.budget) == (Choice("fast", origin="OUTBOARD_CACHE_PRESET"), 2**30)
    from_file = serve._config(options(f"--cache-dit-config={file}")).cache
    assert from_file is not None
    assert from_file.primary is not None
    assert from_file.primary.preset == ""


def test_a_configuration_reaches_a_rank_as_it_is() -> None:
    values = {"scm_compute_bins": (2, 1), "scm_cache_bins": (3,), "residual_diff_threshold": 0.2}
    config = CacheConfig(Choice("fast", values, "here"), None, 7)
    assert config_from(json.loads(json.dumps(asdict(config)))) == config
    assert config_from({}) == CacheConfig()


def test_a_request_comes_before_the_configuration() -> None:
    config = CacheConfig(Choice("fast"), Choice("quality"))
    own = wish_of(CacheSettings(preset="custom", values={"scm_compute_bins": [2]}), config, "model")
    assert own is not None
    assert own.choice.preset == ""
    assert own.choice.values == {"scm_compute_bins": (2,)}
    assert wish_of(CacheSettings(preset="off"), config, "model") is None
    default = wish_of(None, config, "model")
    assert default is not None
    assert default.choice.preset == "fast"
