"""One rank of a test: every subject under every layout of its world, against the same rank by itself.

python ranks.py RANK WORLD FOLDER        reads FOLDER/job.json, rank 0 writes FOLDER/cells-WORLD.json
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from models.tiny import differ
from outboard.engine.models.model import Model
from outboard.engine.parallel.apply import parallelize, undo
from outboard.engine.parallel.layout import Layout
from outboard.engine.parallel.mesh import Mesh, build_mesh
from outboard.protocol.errors import UnsupportedRequestError
from parallel.subjects import Subject

log = logging.getLogger("ranks")
Cells = dict[str, dict[str, Any]]


def ask(model: Model, call: dict[str, Any], mesh: Mesh | None) -> torch.Tensor:
    """The model's answer; replicas are asked different things."""
    given = dict(call)
    x, timestep = given.pop("x"), given.pop("timestep")
    replica = mesh.place("dp") if mesh else 0
    return model.predict(x * (1.0 + 0.25 * replica), timestep, given)


def cell(subject: Subject, model: Model, mesh: Mesh) -> Any:
    """The largest error of any rank, or the sentence that refuses. `model` is whole again afterwards."""
    layout, call = mesh.layout, subject.call()
    alone = ask(model, call, mesh)
    shared = subject.load() if layout.tp > 1 else model
    try:
        parallelize(shared, mesh, layout)
        error = torch.tensor(differ(ask(shared, call, mesh), alone))
    except UnsupportedRequestError as refusal:
        return str(refusal)
    if shared is model:
        undo(model)
        assert torch.equal(ask(model, call, mesh), alone), (subject.name, layout)
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return float(error)


def run(rank: int, world: int, folder: Path) -> Cells:
    job = json.loads((folder / "job.json").read_text())
    dist.init_process_group(
        "gloo",
        init_method=(folder / f"meeting-{world}").as_uri(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    layouts = [Layout(**sizes) for sizes in job["layouts"][str(world)]]
    meshes = [build_mesh(layout, "cpu") for layout in layouts]
    cells: Cells = {}
    for described in job["subjects"]:
        subject = Subject(**(described | {"path": Path(described["path"])}))
        model = subject.load()
        cells[subject.name] = {str(mesh.layout): cell(subject, model, mesh) for mesh in meshes}
        log.info("%d %s %s", rank, subject.name, cells[subject.name])
    dist.barrier()
    dist.destroy_process_group()
    return cells


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    cells = run(rank, world, folder)
    if rank == 0:
        (folder / f"cells-{world}.json").write_text(json.dumps(cells))


if __name__ == "__main__":
    main()
