"""How far each recorded case of a transformer is from stock ComfyUI: a line of the summary and a page."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

HEAD = """# Models

Each family against the raw output of real ComfyUI 0.33.0 for the same inputs and small random weights: the
norm of the difference over the norm of ComfyUI's output, on the CPU, in both dtypes. In bf16 ComfyUI itself
is 5e-3 to 1.5e-2 from its own fp32. Written by the test run:

    OUTBOARD_GOLDEN=... OUTBOARD_WRITE_DOCS=1 scripts/test -m golden

| family | case | fp32 | bf16 |
|---|---|--:|--:|
"""


@dataclass
class ErrorTable:
    """Relative errors by family, case and dtype."""

    rows: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def add(self, family: str, case: str, dtype: str, error: float) -> None:
        self.rows.setdefault((family, case), {})[dtype] = error

    def line(self) -> str:
        worst = {dtype: max(row.get(dtype, 0.0) for row in self.rows.values()) for dtype in ("fp32", "bf16")}
        return f"worst error of a transformer: {worst['fp32']:.1e} in fp32, {worst['bf16']:.1e} in bf16"

    def page(self) -> str:
        missing = float("nan")
        lines = [
            f"| {family} | {case} | {row.get('fp32', missing):.1e} | {row.get('bf16', missing):.1e} |"
            for (family, case), row in sorted(self.rows.items())
        ]
        return HEAD + "\n".join(lines) + "\n"


ERRORS = pytest.StashKey[ErrorTable]()
