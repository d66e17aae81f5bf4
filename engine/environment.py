"""The environment variables a child process gets: ours, less what belongs to the parent alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Set for one interpreter, poison for another.
_INTERPRETER = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def child_environment(
    *, threads: int = 0, other_python: bool = False, parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables for an engine process.

    `threads` above 0 fixes the number of computing threads; `other_python` leaves out what only the parent's
    interpreter can use. ComfyUI's cudaMallocAsync allocator never passes: it breaks collectives and CUDA IPC.
    """
    variables = dict(os.environ if parent is None else parent)
    for name in _INTERPRETER if other_python else ():
        variables.pop(name, None)
    for name in _ALLOCATOR:
        _drop_async_allocator(variables, name)
    if threads:
        variables.update(dict.fromkeys(_THREADS, str(threads)))
    variables["PYTHONUNBUFFERED"] = "1"
    return variables


def _drop_async_allocator(variables: dict[str, str], name: str) -> None:
    options = [option for option in variables.get(name, "").split(",") if option.strip()]
    kept = [option for option in options if option.replace(" ", "").lower() != "backend:cudamallocasync"]
    if kept:
        variables[name] = ",".join(kept)
    else:
        variables.pop(name, None)
