"""A shared engine for the tests that leave it whole, and a runtime folder for those that do not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import harness
from cached_runs import wrapped
from outboard.engine.demo.assets import MODEL
from outboard.engine.launch import Engine
from outboard.engine.models.loader import load
from outboard.engine.models.model import Model
from outboard.protocol.client import Client


@pytest.fixture(scope="session")
def session_runtime() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="obe"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def engine(session_runtime: Path) -> Iterator[Engine]:
    """A shared engine on the CPU with the shipped models, up for the whole session; it respawns its ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTBOARD_RUNTIME_DIR", str(session_runtime))
        started = harness.start()
    yield started
    started.stop()


@pytest.fixture
def client(engine: Engine) -> Iterator[Client]:
    opened = harness.connect(engine)
    yield opened
    opened.close()


@pytest.fixture
def other(engine: Engine) -> Iterator[Client]:
    """A second user of the same engine."""
    opened = harness.connect(engine, "other")
    yield opened
    opened.close()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty runtime folder of the test's own, for engines that it starts and ends."""
    folder = Path(tempfile.mkdtemp(prefix="obe"))
    monkeypatch.setenv("OUTBOARD_RUNTIME_DIR", str(folder))
    yield folder
    harness.end_all(folder)
    shutil.rmtree(folder)


@pytest.fixture
def model() -> Iterator[Model]:
    """A digits model of the test's own, on which nothing may be left."""
    loaded = load(MODEL, dtype=torch.float32, device=torch.device("cpu"))
    yield loaded
    assert not wrapped(loaded), "something was left on the model"
