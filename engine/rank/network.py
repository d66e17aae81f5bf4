"""The one place where both paths call a network, with whose rows they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...protocol.errors import OutOfMemoryError
from ..models.model import Model
from ..sampling.call import Call
from .failure import ran_out_of_memory


def evaluate(
    model: Model, x: Tensor, timestep: Tensor, conditioning: Mapping[str, Any], call: Call
) -> Tensor:
    """Return v for the rows of `call`, x [N, C, ...].

    What a network remembers between steps belongs to the run, the branch and the row; `call` names them.
    Raises OutOfMemoryError saying which rows did not fit.
    """
    try:
        return model.predict(x, timestep, conditioning)
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        failed = str(error).partition("\n")[0]
    raise OutOfMemoryError(
        f"The engine ran out of memory in a forward of {len(x)} rows, {call.rows} for each of "
        f"{len(call.branches)} conditionings, at step {call.step + 1}: {failed}",
        hint="Unload other models, use a smaller picture or batch, or a smaller dtype.",
    )
