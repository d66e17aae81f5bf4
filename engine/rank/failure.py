"""Foreign exceptions of a command, mapped to the one error tree."""

from __future__ import annotations

import traceback

import torch
import torch.distributed as dist

from ...protocol.errors import EngineLostError, InternalError, OutboardError, OutOfMemoryError

_HOST_ALLOCATOR = "DefaultCPUAllocator"


def as_outboard(error: BaseException, doing: str) -> OutboardError:
    """`error` itself when it is ours, out of memory when torch or Python says so, else an internal error.

    `doing` names the command; an internal error carries the traceback in its details.
    """
    if isinstance(error, OutboardError):
        return error
    if ran_out_of_memory(error):
        return OutOfMemoryError(
            f"The engine ran out of memory during {doing}: {error}",
            hint="Unload other models, use a smaller picture or batch, or a smaller dtype.",
        )
    if lost_a_peer(error):
        return EngineLostError(f"Another rank of the engine stopped answering during {doing}: {error}")
    trace = "".join(traceback.format_exception(error))
    return InternalError(
        f"The engine failed during {doing}: {type(error).__name__}: {error}",
        hint="This is a fault of Outboard; please report it with the traceback in the engine's log.",
        details={"traceback": trace[-60000:]},
    )


def lost_a_peer(error: BaseException) -> bool:
    """Whether a foreign exception says that a collective lost one of its ranks."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether a foreign exception says that the device or the host had no room."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or _HOST_ALLOCATOR in str(error)
