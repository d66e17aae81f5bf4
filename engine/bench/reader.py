"""The floor of the load benchmark, a process of its own: the safetensors library reads a file into memory.

Prints the seconds it took. Tensors of the library are views of the mapped file until they are copied.
"""

from __future__ import annotations

import sys
from time import perf_counter

from safetensors import safe_open


def read(path: str) -> float:
    """Seconds to have every tensor of `path` in memory of the process's own."""
    tensors = []
    began = perf_counter()
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            tensors.append(file.get_tensor(name).clone())  # noqa: PERF401 - they must all stay
    return perf_counter() - began


if __name__ == "__main__":
    sys.stdout.write(f"{read(sys.argv[1])}\n")
