from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache.halves import decided

SCRIPT = Path(__file__).with_name("halves.py")


def of_ranks(folder: Path, reduced: str) -> list[Any]:
    """What each of two ranks decided."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), "2", str(folder / "meeting"), reduced],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [json.loads(text) for text in told]


@pytest.mark.distributed
def test_two_ranks_with_half_the_tokens_each_decide_as_one_process_with_all(tmp_path: Path) -> None:
    reused, distances = decided(0, 1, reduced=False)
    assert True in reused and False in reused[2:]
    first, second = of_ranks(tmp_path, "yes")
    assert first == second
    assert first[0] == reused
    assert first[1] == pytest.approx(distances, rel=1e-5)


@pytest.mark.distributed
def test_without_it_they_would_part(tmp_path: Path) -> None:
    first, second = of_ranks(tmp_path, "no")
    assert first[0] != second[0]
