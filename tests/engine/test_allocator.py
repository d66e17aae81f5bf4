"""What the C allocator keeps for the next step, and gives back when asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")

SCRIPT = """
import resource, psutil, torch
from outboard.engine.rank.allocator import keep_buffers, trim
assert keep_buffers()
def step():
    parts = [torch.ones(20 << 18) for _ in range(4)]
    return sum(float(part[0]) for part in parts)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def cost():
    before = faults()
    step()
    return faults() - before
again = min([cost() for _ in range(12)][4:])
held = psutil.Process().memory_info().rss
trim()
print(again, held - psutil.Process().memory_info().rss)
"""


def test_buffers_of_one_step_serve_the_next_and_are_given_back_on_trim() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    faults, given_back = map(int, done.stdout.split())
    assert faults < 200, "80 MB touched anew would be 20,000 faults"
    assert given_back > 60 << 20
