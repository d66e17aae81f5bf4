"""Stock nodes around our MODEL give what they give around stock's, in every version of ComfyUI at hand.

A difference without an error fails, and so does an error that the row does not announce. With
OUTBOARD_WRITE_DOCS set, and when all of it ran, the table goes to docs/nodes.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from comfyui import matrix_files, versions
from comfyui.conftest import REPOSITORY, make_base
from comfyui.matrix_bench import Bench
from comfyui.matrix_rows import FAMILIES, ROWS, Row
from comfyui.matrix_table import ABSENT, MATRIX, OTHER, Matrix
from comfyui.server import ComfyServer, environment
from comfyui.versions import Version

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(300)]

PAGE = REPOSITORY / "docs" / "nodes.md"
PRESENT = [version for version in versions.every() if not version.absence]


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    missing = {version.name: version.absence for version in versions.every() if version.absence}
    matrix = request.config.stash.setdefault(MATRIX, Matrix(missing=missing))
    yield matrix
    if os.environ.get("OUTBOARD_WRITE_DOCS") and matrix.complete():
        PAGE.write_text(matrix.page(), encoding="utf-8")


@pytest.fixture(scope="module", params=PRESENT, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture(scope="module")
def bench(
    version: Version, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """The session's server for the first version, one of its own for each other."""
    if version == versions.first():
        server: ComfyServer = request.getfixturevalue("comfy")
        yield ready(server)
        return
    runtime = Path(tempfile.mkdtemp(prefix="obm"))
    base = make_base(tmp_path_factory.mktemp("matrix") / "base")
    options = ["--force-fp32", "--cache-classic"]
    server = ComfyServer(version.tree, version.python, base, environment(runtime, sys.executable), options)
    server.start()
    yield ready(server)
    server.stop()
    shutil.rmtree(runtime, ignore_errors=True)


def ready(server: ComfyServer) -> Bench:
    matrix_files.make(server.base / "models")
    return Bench(server, server.get("/object_info"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_node_does_what_it_does_around_stock(
    bench: Bench, matrix: Matrix, version: Version, family: str, row: Row
) -> None:
    subject = row.subjects.get(family)
    cell = OTHER if subject is None else bench.cell(row, subject) or ABSENT
    matrix.add(version.name, family, row.title, cell)


def test_the_matrix_has_every_row_once() -> None:
    titles = [row.title for row in ROWS]
    assert len(set(titles)) == len(titles) >= 62
