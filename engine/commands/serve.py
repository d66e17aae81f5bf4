"""`outboard serve`: run an engine in this process until it is told to end."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path

from ...protocol.client import Client
from ...protocol.errors import EngineStartError, InvalidRequestError
from ...protocol.messages.control import Shutdown
from ..cache.config import read_config
from ..cache.yaml_form import content_of
from ..cli import write
from ..config import DTYPES, KINDS, EngineConfig, Environment, parse_bytes
from ..launch import running
from ..lock import FileLock
from ..parallel.layout import Layout
from ..parallel.yaml_form import read_section
from ..paths import SHIPPED_ROOTS, keys_dir, runtime_dir
from ..registry import SHARED
from ..supervisor.endpoints import new_engine_id
from ..supervisor.supervisor import Supervisor

#: ComfyUI's folders below a --models folder, by kind.
LAYOUT: Mapping[str, tuple[str, ...]] = {
    "diffusion_models": ("diffusion_models", "unet"),
    "loras": ("loras",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    settings = Environment()
    add = parser.add_argument
    add(
        "--root",
        action="append",
        default=[],
        metavar="KIND=PATH",
        help=f"a model folder; kinds: {', '.join(KINDS)}",
    )
    add(
        "--models",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a models folder laid out as ComfyUI's",
    )
    add("--device", default=settings.device, help="auto, cpu, cuda or cuda:<index>")
    add("--dtype", default=settings.dtype, choices=DTYPES, help="what auto means for models loaded here")
    add("--threads", type=int, default=settings.threads, help="computing threads per rank; 0: torch's choice")
    add("--memory-budget", type=parse_bytes, default=settings.memory_budget, metavar="SIZE",
        help="room for resident models, e.g. 20G; 0: what the device has free")  # fmt: skip
    add("--blob-budget", type=parse_bytes, default=settings.blob_budget, metavar="SIZE",
        help="room for conditioning kept between runs")  # fmt: skip
    add("--adapter-budget", type=parse_bytes, default=settings.adapter_budget, metavar="SIZE",
        help="room in host memory for LoRAs kept between runs")  # fmt: skip
    add(
        "--bind",
        default="",
        metavar="tcp://HOST:PORT",
        help="also listen there (needs keys) and on the next port",
    )
    add("--cache-dit-config", type=Path, default=None, metavar="FILE",
        help="cache-dit's YAML: its step cache, for runs without settings, and its parallelism")  # fmt: skip
    add("--ranks", "--num-gpus", type=int, default=0, metavar="N",
        help="devices that share each picture, a process each; 0: what the degrees make")  # fmt: skip
    add("--cfg", type=int, default=1, metavar="N", help="ranks that have some rows of a call each")
    add("--enable-cfg-parallel", dest="cfg", action="store_const", const=2, help="--cfg 2")
    add("--ulysses", "--sp", "--ulysses-degree", type=int, default=1, metavar="N",
        help="ranks that have some tokens each, and some heads within attention")  # fmt: skip
    add("--ring", "--ring-degree", type=int, default=1, metavar="N",
        help="ranks that have some tokens each; keys go round")  # fmt: skip
    add("--tp", type=int, default=1, metavar="N", help="ranks that have a part of the weights each")
    add("--keys", type=Path, default=None, metavar="DIR", help="folder made by `outboard keys`")
    add("--idle-exit", type=float, default=0.0, metavar="SECONDS", help="end after so long without a message")
    add("--stop", action="store_true", help="end the running shared engine instead")
    for hidden in ("--life", "--engine-id", "--register"):
        add(hidden, default="", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Serve until told to end. 0 when that was in order."""
    if options.stop:
        return _stop()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = runtime_dir()
    launched = bool(options.engine_id)
    engine = options.engine_id or new_engine_id()
    supervisor = Supervisor(_config(options), folder, options.register or SHARED, engine)
    try:
        # Whoever launched this process holds the lock for it.
        with nullcontext() if launched else FileLock(folder / "start.lock"):
            if not launched:
                _refuse_twin(folder)
            supervisor.listen()
        supervisor.run()
    finally:
        supervisor.close()
    return 0


def _config(options: argparse.Namespace) -> EngineConfig:
    ranks, layout = _group(options)
    return EngineConfig(
        roots=_roots(options.root, options.models),
        life="owned" if options.life == "owned" else "shared",
        device=options.device,
        dtype=options.dtype,
        bind=options.bind,
        keys=options.keys or (keys_dir() if options.bind and keys_dir().is_dir() else None),
        ranks=ranks,
        layout=layout,
        threads=options.threads,
        memory_budget=options.memory_budget,
        blob_budget=options.blob_budget,
        adapter_budget=options.adapter_budget,
        idle_exit=options.idle_exit,
        cache=read_config(Environment().variables, options.cache_dit_config),
    )


def _group(options: argparse.Namespace) -> tuple[int, Layout | None]:
    """The number of ranks, and how they share a picture; None for the best for each.

    Degrees on the command line hide those of the file.
    """
    ranks = options.ranks or Environment().ranks
    layout: Layout | None = Layout(cfg=options.cfg, ring=options.ring, ulysses=options.ulysses, tp=options.tp)
    if layout == Layout():
        layout = _layout_of(options.cache_dit_config, ranks)
    return ranks or (layout.world if layout else 1), layout


def _layout_of(file: Path | None, ranks: int) -> Layout | None:
    content = content_of(file) if file else None
    return read_section(content, str(file), ranks) if isinstance(content, Mapping) else None


def _roots(named: Iterable[str], layouts: Iterable[Path]) -> dict[str, tuple[Path, ...]]:
    roots: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for entry in named:
        kind, equals, path = entry.partition("=")
        if not equals or kind not in roots:
            raise InvalidRequestError(
                f"--root {entry} is not <kind>=<path>.", hint=f"Kinds: {', '.join(KINDS)}."
            )
        roots[kind].append(Path(path).absolute())
    for models in layouts:
        for kind, folders in LAYOUT.items():
            roots[kind] += [(models / folder).absolute() for folder in folders]
    for kind, shipped in SHIPPED_ROOTS.items():
        roots[kind] += shipped
    return {kind: tuple(dict.fromkeys(paths)) for kind, paths in roots.items()}


def _refuse_twin(folder: Path) -> None:
    found = running(folder)
    if found is not None:
        raise EngineStartError(
            f"A shared engine is already running (pid {found.pid}).", hint="`outboard serve --stop` ends it."
        )


def _stop() -> int:
    found = running(runtime_dir())
    if found is None:
        write("No shared engine is running.")
        return 1
    client = Client.connect(found.address, client="outboard serve --stop", timeout=60.0)
    client.control(Shutdown())
    client.close()
    write(f"The engine (pid {found.pid}) is ending.")
    return 0
