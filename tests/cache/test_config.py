"""The files and variables that users of SGLang-Diffusion and cache-dit have."""

from __future__ import annotations

from pathlib import Path

import pytest

from outboard.engine.cache.config import CacheConfig, read_config
from outboard.engine.cache.settings import SCM_PRESETS, Settings
from outboard.engine.cache.yaml_form import read_file
from outboard.protocol.errors import InvalidRequestError

YAML = """
cache_config:
  max_warmup_steps: 8
  warmup_interval: 2
  max_cached_steps: -1
  max_continuous_cached_steps: 2
  Fn_compute_blocks: 1
  Bn_compute_blocks: 0
  residual_diff_threshold: 0.12
  enable_taylorseer: true
  taylorseer_order: 1
"""
PARALLEL = """
parallelism_config:
  ulysses_size: auto
  parallel_kwargs:
    attention_backend: native
    extra_parallel_modules: ["text_encoder", "vae"]
"""
SGLANG = {"SGLANG_CACHE_DIT_ENABLED": "true"}


def write(folder: Path, text: str) -> Path:
    path = folder / "cache.yaml"
    path.write_text(text)
    return path


def settings(config: CacheConfig, steps: int = 28) -> Settings:
    assert config.primary is not None
    return config.primary.settings(steps=steps)


@pytest.mark.parametrize("text", [YAML, YAML + PARALLEL], ids=["cache", "hybrid"])
def test_the_published_file_means_what_it_says(tmp_path: Path, text: str) -> None:
    assert settings(read_config({}, write(tmp_path, text))) == Settings(
        max_warmup_steps=8,
        warmup_interval=2,
        max_continuous_cached_steps=2,
        Fn_compute_blocks=1,
        residual_diff_threshold=0.12,
        taylorseer_order=1,
    )


def test_a_file_without_a_cache_section_asks_for_none(tmp_path: Path) -> None:
    assert read_config({}, write(tmp_path, PARALLEL)).primary is None


def test_a_section_that_nothing_reads_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_config({}, write(tmp_path, "quantize_config:\n  quant_type: float8\n")).primary is None
    assert "the section quantize_config has no effect" in caplog.text


def test_the_other_keys_of_cache_dit_are_known(tmp_path: Path) -> None:
    text = """
cache_config:
  num_inference_steps: 28
  steps_computation_mask: fast
  steps_computation_policy: static
  enable_separate_cfg: true
  enable_sperate_cfg: true
  max_accumulated_residual_diff_threshold: 2
  Fn_compute_blocks: 1
"""
    found = settings(read_config({}, write(tmp_path, text)))
    assert found == Settings(
        Fn_compute_blocks=1,
        scm_preset="fast",
        steps_computation_policy="static",
        max_accumulated_residual_diff_threshold=2.0,
    )


def test_a_mask_may_be_a_list(tmp_path: Path) -> None:
    path = write(tmp_path, "cache_config:\n  steps_computation_mask: [1, 1, 0, 1]\n")
    assert settings(read_config({}, path)).steps_computation_mask == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cache_config:\n  Fn_blocks: 1\n", "Fn_blocks: the step cache knows no such key"),
        ("cache_config:\n  Fn_compute_blocks: yes\n", "Fn_compute_blocks is True; it must be a whole number"),
        ("cache_config:\n  residual_diff_threshold: much\n", "it must be a number"),
        ("cache_config:\n  enable_taylorseer: 1\n", "it must be true or false"),
        ("cache_config:\n  enable_dmd: true\n", "enable_dmd is True"),
        ("cache_config:\n  steps_computation_mask: quick\n", "it must be one of slow"),
        ("cache_config:\n  cache_type: DBPrune\n", "DBPrune"),
        ("cache_config: 5\n", "must hold keys"),
        ("cash_config:\n  a: 1\n", "no section 'cash_config'"),
        ("Fn_compute_blocks: 1\n", "no section"),
        ("- 1\n", "must hold sections"),
        ("a: [\n", "no readable YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        read_file(write(tmp_path, text))
    assert "cache.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cache_config:\n  taylorseer_order: 2\n", "says nothing unless enable_taylorseer"),
        ("cache_config:\n  steps_computation_policy: static\n", "no mask to follow"),
        ("cache_config:\n  warmup_interval: 0\n", "warmup_interval is 0"),
    ],
)
def test_impossible_combinations_are_refused_naming_the_file(
    tmp_path: Path, text: str, complaint: str
) -> None:
    config = read_config({}, write(tmp_path, text))
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        settings(config)
    assert "cache.yaml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"none\.yaml"):
        read_file(tmp_path / "none.yaml")


def test_sglang_defaults_are_sglangs() -> None:
    assert settings(read_config(SGLANG)) == Settings(
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        max_warmup_steps=4,
        residual_diff_threshold=0.24,
        max_continuous_cached_steps=3,
        taylorseer_order=0,
    )


def test_the_published_variables_mean_what_they_say() -> None:
    variables = SGLANG | {
        "SGLANG_CACHE_DIT_FN": "2",
        "SGLANG_CACHE_DIT_BN": "1",
        "SGLANG_CACHE_DIT_WARMUP": "4",
        "SGLANG_CACHE_DIT_RDT": "0.4",
        "SGLANG_CACHE_DIT_MC": "4",
        "SGLANG_CACHE_DIT_TAYLORSEER": "true",
        "SGLANG_CACHE_DIT_TS_ORDER": "2",
        "SGLANG_CACHE_DIT_SCM_PRESET": "medium",
    }
    assert settings(read_config(variables)) == Settings(
        Fn_compute_blocks=2,
        Bn_compute_blocks=1,
        max_warmup_steps=4,
        residual_diff_threshold=0.4,
        max_continuous_cached_steps=4,
        taylorseer_order=2,
        scm_preset="medium",
    )


def test_bins_come_before_a_named_mask() -> None:
    variables = SGLANG | {
        "SGLANG_CACHE_DIT_SCM_PRESET": "medium",
        "SGLANG_CACHE_DIT_SCM_COMPUTE_BINS": "8,3,3,2,2",
        "SGLANG_CACHE_DIT_SCM_CACHE_BINS": "1,2,2,2,3",
    }
    found = settings(read_config(variables))
    assert (found.scm_preset, sum(found.scm_compute_bins)) == ("none", 18)


@pytest.mark.parametrize("policy", ["dynamic", "static"])
def test_published_bins_and_policies(policy: str) -> None:
    variables = SGLANG | {
        "SGLANG_CACHE_DIT_SCM_COMPUTE_BINS": "8,3,3,2,2",
        "SGLANG_CACHE_DIT_SCM_CACHE_BINS": "1,2,2,2,3",
        "SGLANG_CACHE_DIT_SCM_POLICY": policy,
    }
    found = settings(read_config(variables))
    assert found.scm_compute_bins == (8, 3, 3, 2, 2)
    assert found.scm_cache_bins == (1, 2, 2, 2, 3)
    assert found.steps_computation_policy == policy


@pytest.mark.parametrize(
    ("name", "mask"),
    [*((name, name) for name in SCM_PRESETS), ("quality", "slow"), ("balanced", "medium")],
)
def test_every_published_name_of_a_mask(name: str, mask: str) -> None:
    assert settings(read_config(SGLANG | {"SGLANG_CACHE_DIT_SCM_PRESET": name})).scm_preset == mask


def test_without_enabled_sglangs_variables_switch_nothing_on() -> None:
    assert read_config({"SGLANG_CACHE_DIT_FN": "2"}).primary is None
    assert read_config({"SGLANG_CACHE_DIT_ENABLED": "false"}).primary is None


def test_the_second_transformer_has_the_first_ones_settings_but_for_its_own() -> None:
    config = read_config(SGLANG | {"SGLANG_CACHE_DIT_FN": "2", "SGLANG_CACHE_DIT_SECONDARY_RDT": "0.5"})
    assert config.secondary is not None
    assert (settings(config).Fn_compute_blocks, settings(config).residual_diff_threshold) == (2, 0.24)
    second = config.secondary.settings()
    assert (second.Fn_compute_blocks, second.residual_diff_threshold) == (2, 0.5)
    off = read_config(SGLANG | {"SGLANG_CACHE_DIT_SECONDARY_ENABLED": "false"})
    assert (off.primary is None, off.secondary) == (False, None)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SGLANG_CACHE_DIT_FNN", "1"),
        ("SGLANG_CACHE_DIT_SECONDARY_FNN", "1"),
        ("SGLANG_CACHE_DIT_FN", "two"),
        ("SGLANG_CACHE_DIT_ENABLED", "maybe"),
        ("SGLANG_CACHE_DIT_SCM_PRESET", "quick"),
        ("SGLANG_CACHE_DIT_SCM_CACHE_BINS", "1;2"),
        ("OUTBOARD_CACHE_SPEED", "fast"),
        ("OUTBOARD_CACHE_PRESET", "ultra"),
        ("OUTBOARD_CACHE_RDT", "x"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(variable: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=variable):
        read_config({variable: text})


def test_the_more_deliberate_source_wins(tmp_path: Path) -> None:
    file = write(tmp_path, YAML)
    sglang = SGLANG | {"SGLANG_CACHE_DIT_RDT": "0.4", "SGLANG_CACHE_DIT_FN": "2"}
    ours = sglang | {"OUTBOARD_CACHE_RDT": "0.3"}
    one = settings(read_config(ours))
    assert (one.residual_diff_threshold, one.Fn_compute_blocks) == (0.3, 2)
    preset = read_config(ours | {"OUTBOARD_CACHE_PRESET": "fast"}).primary
    assert preset is not None
    assert (preset.preset, dict(preset.values)) == ("fast", {"residual_diff_threshold": 0.3})
    named = settings(read_config(ours | {"OUTBOARD_CACHE_CONFIG": str(file)}))
    assert (named.residual_diff_threshold, named.max_warmup_steps) == (0.3, 8)
    assert settings(read_config(ours, file)).residual_diff_threshold == 0.12
    assert read_config(sglang | {"OUTBOARD_CACHE_ENABLED": "false"}).primary is None


def test_enabled_and_no_more_is_the_balanced_preset() -> None:
    choice = read_config({"OUTBOARD_CACHE_ENABLED": "true"}).primary
    assert choice is not None
    assert choice.preset == "balanced"


def test_a_preset_and_a_file_are_one_too_many() -> None:
    with pytest.raises(InvalidRequestError, match="both set"):
        read_config({"OUTBOARD_CACHE_PRESET": "fast", "OUTBOARD_CACHE_CONFIG": "x.yaml"})


def test_the_budget_is_a_size() -> None:
    assert read_config({"OUTBOARD_CACHE_BUDGET": "2G"}).budget == 2 << 30
    with pytest.raises(InvalidRequestError):
        read_config({"OUTBOARD_CACHE_BUDGET": "much"})


def test_a_mask_in_a_higher_place_replaces_one_below() -> None:
    variables = SGLANG | {
        "SGLANG_CACHE_DIT_SCM_COMPUTE_BINS": "2,1",
        "SGLANG_CACHE_DIT_SCM_CACHE_BINS": "1",
        "OUTBOARD_CACHE_SCM_PRESET": "slow",
    }
    found = settings(read_config(variables))
    assert (found.scm_preset, found.scm_compute_bins, found.scm_cache_bins) == ("slow", (), ())
