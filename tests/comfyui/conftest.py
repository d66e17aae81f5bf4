"""One real ComfyUI for the session, with this pack and a few test nodes in its custom_nodes.

COMFYUI_PATH names its tree (else ~/ComfyUI), COMFYUI_PYTHON its interpreter (else the tree's .venv).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from comfyui import files, versions
from comfyui.graphs import Subject
from comfyui.matrix_table import MATRIX
from comfyui.pairs import DEFAULT, DIFFERS, Build, Pair, known_here, run_pair
from comfyui.server import ComfyServer, environment
from comfyui.table import TABLE

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PACK = "Comfy-UI.Outboard-test"


def comfy_tree() -> Path:
    return versions.first().tree


def comfy_python() -> Path:
    return versions.first().python


def absence() -> str:
    """Why there is no ComfyUI to test in; "" when there is one."""
    if not (comfy_tree() / "main.py").is_file():
        return f"there is no ComfyUI in {comfy_tree()}; set COMFYUI_PATH"
    if not comfy_python().exists():
        return f"ComfyUI's Python {comfy_python()} does not exist; set COMFYUI_PYTHON"
    return ""


class Measured:
    """The largest difference of each kind of pair, for the end of the test run."""

    def __init__(self) -> None:
        self.largest: dict[str, tuple[float, str]] = {}

    def add(self, kind: str, difference: float, case: str) -> None:
        self.largest[kind] = max(self.largest.get(kind, (0.0, "")), (difference, case))


MEASURED = pytest.StashKey[Measured]()
REASON = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a ComfyUI, take the tests that were asked for out again, and say so at the end."""
    here = [item for item in items if HERE in Path(item.path).parents]
    reason = absence()
    if here and reason:
        config.stash[REASON] = f"{len(here)} tests in a real ComfyUI did NOT run: {reason}"
        config.hook.pytest_deselected(items=here)
        items[:] = [item for item in items if item not in here]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reason = config.stash.get(REASON, "")
    if reason:
        terminalreporter.section("ComfyUI", sep="!", red=True, bold=True)
        terminalreporter.line(reason, red=True)
    measured = config.stash.get(MEASURED, None)
    if measured is not None:
        terminalreporter.section("largest differences from stock ComfyUI, as a share of the largest value")
        for kind, (difference, case) in sorted(measured.largest.items()):
            terminalreporter.line(f"{kind:20} {difference:.2e}  {case}")
    table = config.stash.get(TABLE, None)
    if table is not None:
        terminalreporter.section("official templates")
        terminalreporter.line(f"{table.line()}; at most {table.difference:.2e} from stock")
    matrix = config.stash.get(MATRIX, None)
    if matrix is not None:
        terminalreporter.section("stock nodes around our MODEL")
        for line in matrix.summary():
            terminalreporter.line(line)


def make_base(folder: Path) -> Path:
    """A base directory for ComfyUI: models, and custom_nodes with this pack under a name with a hyphen."""
    nodes = folder / "custom_nodes"
    nodes.mkdir(parents=True)
    (nodes / PACK).symlink_to(REPOSITORY, target_is_directory=True)
    (nodes / "outboard_testpack").symlink_to(HERE / "testpack", target_is_directory=True)
    for name in ("input", "output", "user/default"):
        (folder / name).mkdir(parents=True)
    files.make(folder / "models")
    return folder


@pytest.fixture(scope="session")
def runtime() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="obt"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def comfy(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Iterator[ComfyServer]:
    """The session's server: fp32, previews as ComfyUI makes them on request."""
    base = make_base(tmp_path_factory.mktemp("comfyui") / "base")
    server = ComfyServer(
        comfy_tree(),
        comfy_python(),
        base,
        environment(runtime, sys.executable),
        ["--force-fp32", "--preview-method", "latent2rgb", "--cache-classic"],
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def compare(comfy: ComfyServer, request: pytest.FixtureRequest) -> Callable[..., Pair]:
    """Run a graph with both loaders and require the same latent; the difference is in the summary."""
    measured = request.config.stash.setdefault(MEASURED, Measured())

    def compared(subject: Subject, build: Build, path: str, weight_dtype: str = DEFAULT) -> Pair:
        known_here(comfy, subject)
        pair = run_pair(comfy, subject.file, build, weight_dtype)
        measured.add(f"{subject.kind} {path}", pair.difference, request.node.name)
        assert pair.difference <= subject.tolerance, f"{pair.difference:.2e} apart"
        other = DIFFERS in pair.report["reason"] and versions.first().old
        assert pair.report["path"] == ("per_step" if other else path), pair.report["reason"]
        return pair

    return compared
