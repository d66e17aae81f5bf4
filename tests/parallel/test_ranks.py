"""Every family under every layout, on several gloo ranks, gives what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from parallel import ranks
from parallel.subjects import write_subjects
from parallel.table import LAYOUTS, page

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]

LIMIT = 1e-5
PAGE = Path(__file__).parents[2] / "docs" / "parallel.md"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> ranks.Cells:
    folder = tmp_path_factory.mktemp("ranks")
    subjects = [asdict(subject) | {"path": str(subject.path)} for subject in write_subjects(folder)]
    (folder / "job.json").write_text(json.dumps({"subjects": subjects, "layouts": LAYOUTS}))
    joined: ranks.Cells = {subject["name"]: {} for subject in subjects}
    for world in map(int, LAYOUTS):
        start(world, folder)
        for name, row in json.loads((folder / f"cells-{world}.json").read_text()).items():
            joined[name] |= row
    if os.environ.get("OUTBOARD_WRITE_DOCS"):
        PAGE.write_text(page(joined), encoding="utf-8")
    return joined


def start(world: int, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(ranks.__file__))]
    with ExitStack() as open_things:
        logs = [
            open_things.enter_context((folder / f"rank-{world}-{rank}.log").open("w+"))
            for rank in range(world)
        ]
        processes = [
            open_things.enter_context(
                subprocess.Popen([*command, str(rank), str(world), str(folder)], env=environment, stderr=log)
            )
            for rank, log in enumerate(logs)
        ]
        for process in processes:
            open_things.callback(process.kill)
        codes = [process.wait(800) for process in processes]
        for log in logs:
            log.seek(0)
        assert codes == [0] * world, "\n".join(log.read()[-3000:] for log in logs)


def results(cells: ranks.Cells) -> dict[tuple[str, str], Any]:
    return {(name, layout): found for name, row in cells.items() for layout, found in row.items()}


def test_all_layouts_give_what_one_process_gives(cells: ranks.Cells) -> None:
    errors = {key: found for key, found in results(cells).items() if isinstance(found, float)}
    assert len(errors) > 100
    assert {key: error for key, error in errors.items() if not error <= LIMIT} == {}


def test_only_tensor_parallel_is_refused_and_it_says_what_would_work(cells: ranks.Cells) -> None:
    refused = {key: found for key, found in results(cells).items() if isinstance(found, str)}
    for (_, layout), sentence in refused.items():
        assert "tp " in layout
        assert "do not divide by" in sentence
        assert "Use " in sentence


def test_every_family_was_under_every_layout(cells: ranks.Cells) -> None:
    families = {"flux1", "flux2", "qwen", "z-image", "ernie", "wan", "chroma", "sd3", "hunyuan", "ltx"}
    tried = {
        (family, layout)
        for (name, layout), found in results(cells).items()
        for family in families
        if name.replace("_", "-").startswith(family) and isinstance(found, float)
    }
    present = {family for family, _ in tried}
    layouts = {layout for row in cells.values() for layout in row} - {"tp 3"}
    assert {(family, layout) for family in present for layout in layouts} - tried == set()
