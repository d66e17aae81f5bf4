"""A ModelPatcher whose weights live in an engine.

ComfyUI's memory manager sees a model of its true size on its own device, and asks it to load and unload like
any other; nothing is ever moved here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import comfy.model_management
import comfy.model_patcher
import torch
from comfy.patcher_extension import CallbacksMP, WrappersMP

from ..protocol.errors import UnsupportedRequestError
from . import engine_decides, refusals
from .compat import current_node
from .outfit import Outfits
from .remote import RemoteModel

#: The key of the wrapper with which TorchCompileModel and its like exchange parts for compiled ones.
COMPILE = "torch.compile"
#: Where ComfyUI keeps the models that MultiGPU_WorkUnits makes of one.
SPLIT = "multigpu"
#: What SelectModelDevice leaves on a model whose device it has chosen.
SELECTED = "_select_base_load_device"


class OutboardPatcher(comfy.model_patcher.ModelPatcher):
    """Its `model` is a skeleton with the attributes `outboard` (RemoteModel) and `outboard_local`.

    outboard_local: whether the engine computes on the very device ComfyUI manages as `load_device`.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._outfits = Outfits()

    @property
    def remote(self) -> RemoteModel:
        found: RemoteModel = self.model.outboard
        return found

    def model_size(self) -> int:
        return self.remote.footprint if self.model.outboard_local else 0

    def loaded_size(self) -> int:
        return self.remote.resident_bytes if self.model.outboard_local else 0

    def load(
        self,
        device_to: torch.device | None = None,
        lowvram_model_memory: float = 0,
        force_patch_weights: bool = False,
        full_load: bool = False,
    ) -> None:
        refusals.check_patcher(self)
        if hasattr(self.model, SELECTED):
            engine_decides.DEVICE.once()
        self.dress()
        self.remote.load()
        self.model.device = device_to
        self.model.model_loaded_weight_memory = self.loaded_size()
        self.model.current_weight_patches_uuid = self.patches_uuid
        for callback in self.get_all_callbacks(CallbacksMP.ON_LOAD):
            callback(self, device_to, lowvram_model_memory, force_patch_weights, full_load)

    def partially_load(
        self, device_to: torch.device, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        before = self.loaded_size()
        self.unpatch_model(unpatch_weights=False)
        self.patch_model(load_weights=False)
        self.load(device_to, extra_memory, force_patch_weights)
        return self.loaded_size() - before

    def partially_unload(
        self, device_to: torch.device, memory_to_free: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Free nothing: the engine drops a whole model, which `detach` asks for."""
        return 0

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        super().unpatch_model(device_to=None, unpatch_weights=False)
        if unpatch_weights:
            self.model.current_weight_patches_uuid = None
            self.model.model_loaded_weight_memory = 0
            if device_to is not None:
                self.model.device = device_to

    def detach(self, unpatch_all: bool = True) -> Any:
        """`unpatch_all` comes from the Unload buttons and from memory pressure: the engine drops the model.

        Pressure arises inside a node; then an engine on another device has nothing to give and is left alone.
        """
        model = super().detach(unpatch_all)
        if unpatch_all and (self.model.outboard_local or not current_node()):
            self.remote.unload()
        return model

    def pre_run(self) -> None:
        refusals.check_patcher(self)
        self.dress()
        super().pre_run()

    def dress(self) -> None:
        """Let the engine wear, from the next call on, what this MODEL and its current hooks say."""
        self.remote.adapters = self._outfits.of(self)

    def patch_hooks(self, hooks: Any) -> None:
        self.current_hooks = hooks
        self.dress()

    def unpatch_hooks(self, whitelist_keys_set: set[str] | None = None) -> None:
        if self.current_hooks is not None:
            self.patch_hooks(None)

    def inject_model(self) -> None:
        """What LoraLoaderBypass injects is computed in the engine; other injections are refused."""

    def pin_weight_to_device(self, key: str) -> None:
        """There is nothing here to pin."""

    def unpin_weight(self, key: str) -> None:
        """There is nothing here to unpin."""

    def get_key_patches(self, filter_prefix: str | None = None) -> NoReturn:
        _refuse("Its weights cannot be merged into another model (ModelMerge nodes).")

    def patch_weight_to_device(self, key: str, *args: Any, **keywords: Any) -> NoReturn:
        _refuse(f"Its weight {key!r} cannot be read (LoraSave and similar nodes).")

    def model_state_dict_for_saving(self, model: Any = None, prefix: str = "") -> NoReturn:
        refuse_saving()

    def state_dict_for_saving(self, *args: Any, **keywords: Any) -> NoReturn:
        refuse_saving()

    def add_wrapper_with_key(self, wrapper_type: str, key: str, wrapper: Callable[..., Any]) -> None:
        """As ever, but that nothing here is worth compiling: the way to the engine is no graph of tensors."""
        if wrapper_type == WrappersMP.APPLY_MODEL and key == COMPILE:
            engine_decides.COMPILE.once()
        else:
            super().add_wrapper_with_key(wrapper_type, key, wrapper)

    def deepclone_multigpu(self, *args: Any, **keywords: Any) -> OutboardPatcher:
        """The copy for another GPU of ComfyUI's: the same model, since neither GPU computes it."""
        copy: OutboardPatcher = self.clone()
        return copy

    def set_additional_models(self, key: str, models: list[Any]) -> None:
        if key == SPLIT and models:
            engine_decides.SPLIT.once()
        else:
            super().set_additional_models(key, models)

    def set_model_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """For ModelComputeDtype, which `load` refuses; not for the device that SelectModelDevice chose."""
        if not (hasattr(self.model, SELECTED) and dtype in self._cast_dtypes()):
            super().set_model_compute_dtype(dtype)

    def _cast_dtypes(self) -> set[torch.dtype | None]:
        """What ComfyUI would compute the weights in, on any device that SelectModelDevice offers."""
        management = comfy.model_management
        devices = [*management.get_all_torch_devices(), torch.device("cpu")]
        return {management.unet_manual_cast(self.model_dtype(), device) for device in devices}


def refuse_saving(*args: Any, **keywords: Any) -> NoReturn:
    """Stands in wherever ComfyUI collects weights to save."""
    _refuse("It cannot be saved from here (ModelSave, CheckpointSave).")


def _refuse(what: str) -> NoReturn:
    raise UnsupportedRequestError(
        f"The weights of this MODEL are in the Outboard engine. {what}", hint=refusals.STOCK
    )
