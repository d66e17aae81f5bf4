"""What the settings say of each step of one run before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...protocol.errors import InvalidRequestError
from .masks import FEWEST_STEPS, Mask, mask_of
from .settings import Settings


class Need(Enum):
    """COMPUTE and REUSE are known on the host; COMPARE asks the tensors."""

    COMPUTE = "compute"
    REUSE = "reuse"
    COMPARE = "compare"


@dataclass(frozen=True)
class Plan:
    """The settings of one run of `total` steps through a network of `blocks` blocks."""

    settings: Settings
    total: int
    blocks: int
    mask: Mask | None

    @classmethod
    def of(cls, settings: Settings, total: int, blocks: int) -> Plan:
        """Raises InvalidRequestError for what cannot be: too few blocks, a mask of another length."""
        if total < 1:
            raise InvalidRequestError(f"Step cache: a run of {total} steps has none to skip.")
        check_blocks(settings, blocks)
        return cls(settings, total, blocks, mask_of(settings, total))

    @property
    def static(self) -> bool:
        return self.mask is not None and self.settings.static

    @property
    def first(self) -> int:
        """The first block that a skipped step skips."""
        skips_all = self.static and self.settings.skip_fn_on_static
        return 0 if skips_all else self.settings.Fn_compute_blocks

    @property
    def last(self) -> int:
        """The last block that a skipped step skips."""
        return self.blocks - self.settings.Bn_compute_blocks - 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of a setting that has no effect in this run."""
        if self.settings.masked and self.mask is None:
            return (f"The {self.settings.scm_preset} mask is off: it needs {FEWEST_STEPS} steps or more.",)
        if (
            self.settings.max_warmup_steps >= self.total
            and self.settings.warmup_interval == 1
            and not self.mask
        ):
            return (f"All {self.total} steps are warm-up (max_warmup_steps): none can be skipped.",)
        return ()

    def need(self, step: int) -> Need:
        """What step `step` (from 0) asks for."""
        settings = self.settings
        if self.mask is not None:
            if self.mask[step]:
                return Need.COMPUTE
            return Need.REUSE if self.static else Need.COMPARE
        warming = step < settings.max_warmup_steps and step % settings.warmup_interval == 0
        return Need.COMPUTE if warming else Need.COMPARE

    def missed(self, computed: float, step: int) -> bool:
        """Whether the mask wanted a step computed after position `computed` and before `step`.

        What a branch that sat out such a step remembers is older than the mask allows.
        """
        if self.mask is None:
            return False
        return any(self.mask[between] for between in range(int(computed) + 1, step))


def check_blocks(settings: Settings, blocks: int) -> None:
    """Raise InvalidRequestError when a network of `blocks` blocks has none left to skip."""
    first, last = settings.Fn_compute_blocks, settings.Bn_compute_blocks
    if first + last >= blocks:
        raise InvalidRequestError(
            f"Step cache: Fn_compute_blocks {first} and Bn_compute_blocks {last} leave none of the model's "
            f"{blocks} blocks to skip.",
            hint="Lower one of them; 1 and 0 are the usual choice.",
        )
