"""The one place where both paths call a network, with whose rows they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ...protocol.errors import OutOfMemoryError, ResourceError
from ..models.model import Model
from ..parallel.apply import is_shared
from ..sampling.call import Call
from ..sampling.conditioning import cut_rows
from .failure import ran_out_of_memory
from .step_cache import CachedRun


@dataclass(frozen=True, eq=False)
class Rows:
    """What one forward is given: x [N, C, ...], timestep [N, ...], conditioning, and whose rows they are."""

    x: Tensor
    timestep: Tensor
    conditioning: Mapping[str, Any]
    call: Call

    def branch(self, index: int) -> Rows:
        """The rows of one branch alone."""
        rows, own = self.call.rows, slice(index * self.call.rows, (index + 1) * self.call.rows)
        call = replace(self.call, branches=self.call.branches[index : index + 1])
        conditioning = cut_rows(self.conditioning, own, rows * len(self.call.branches))
        return Rows(self.x[own], self.timestep[own], conditioning, call)


def evaluate(model: Model, rows: Rows, cached: CachedRun) -> Tensor:
    """Return v [N, C, ...].

    What a network remembers between steps belongs to the run, the branch and the row; `rows.call` names them.
    Raises OutOfMemoryError saying which rows did not fit, ResourceError where no other way can be tried.
    """
    try:
        with cached.step(model, rows.call):
            return model.predict(rows.x, rows.timestep, rows.conditioning)
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        failed = str(error).partition("\n")[0]
    call = rows.call
    # Ranks that share a forward do not make it again in parts: the others wait within it.
    kind = ResourceError if is_shared(model) else OutOfMemoryError
    raise kind(
        f"The engine ran out of memory in a forward of {len(rows.x)} rows, {call.rows} for each of "
        f"{max(len(call.branches), 1)} conditionings, at step {call.step + 1}: {failed}",
        hint="Unload other models, use a smaller picture or batch, or a smaller dtype.",
    )
