"""What a trial may change of torch: read when torch is clean, and put back after each trial."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.multiprocessing  # its strategy is a setting
from torch.nn.modules import module as _modules

from autotune.backends.worker import float_precision
from autotune.backends.worker.process_settings import Setting

_HOOKS = [n for n in dir(_modules) if n.startswith("_global_") and n.endswith("_hooks")]
_SWITCHES: list[tuple[Any, str]] = [  # those of TF32 are in `float_precision`
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "benchmark_limit"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "enabled"),
    (torch.backends.cuda.matmul, "allow_fp16_accumulation"),  # of torch 2.7 and later
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.mkldnn, "enabled"),
]
_BACKENDS = [(owner, name) for owner, name in _SWITCHES if hasattr(owner, name)]


@dataclass(frozen=True)
class TorchState:
    """Torch's global state when it was clean."""

    backends: tuple[Any, ...]
    setters: tuple[tuple[Callable[[Any], object], Any], ...]
    settings: dict[str, Any]
    hooks: dict[str, dict[int, Any]]


def read() -> TorchState:
    """Read torch's global state."""
    return TorchState(
        backends=tuple(getattr(owner, name) for owner, name in _BACKENDS),
        setters=(
            (torch.set_default_dtype, torch.get_default_dtype()),
            (torch.set_default_device, None),  # naming one would slow every later trial
            (torch.set_num_threads, torch.get_num_threads()),
            (torch.set_grad_enabled, torch.is_grad_enabled()),
            (float_precision.put_back, float_precision.read()),
            (torch.autograd.set_detect_anomaly, False),
            (_set_deterministic, torch.get_deterministic_debug_mode()),
        ),
        settings={name: setting.read() for name, setting in _SETTINGS.items()},
        hooks={name: dict(getattr(_modules, name)) for name in _HOOKS if _is_dict(name)},
    )


def put_back(clean: TorchState) -> None:
    """Put torch's global state back to `clean`, as far as it can be."""
    for (owner, name), value in zip(_BACKENDS, clean.backends, strict=True):
        if getattr(owner, name) != value:
            setattr(owner, name, value)
    for setter, value in clean.setters:
        setter(value)
    for name, setting in _SETTINGS.items():
        if setting.put_back is not None and setting.read() != clean.settings[name]:
            setting.put_back(clean.settings[name])
    torch.set_flush_denormal(False)  # it cannot be read
    for name, hooks in clean.hooks.items():
        current = getattr(_modules, name)
        current.clear()
        current.update(hooks)
    torch.clear_autocast_cache()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()  # what it learned of shapes is another trial's


def changed(clean: TorchState) -> list[str]:
    """The names of the settings that differ from `clean`."""
    return [n for n, setting in _SETTINGS.items() if setting.read() != clean.settings[n]]


def _set_deterministic(mode: int) -> None:
    torch.set_deterministic_debug_mode(mode)


def _is_dict(name: str) -> bool:
    return isinstance(getattr(_modules, name), dict)


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def _put_back_autocast(clean: tuple[bool, ...]) -> None:
    for device, on in zip(("cpu", "cuda"), clean, strict=True):
        torch.set_autocast_enabled(device, on)


def _attention() -> tuple[bool, ...]:
    cuda: Any = torch.backends.cuda  # its functions have no types
    return (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


def _put_back_attention(clean: tuple[bool, ...]) -> None:
    cuda: Any = torch.backends.cuda
    cuda.enable_flash_sdp(clean[0])
    cuda.enable_mem_efficient_sdp(clean[1])
    cuda.enable_math_sdp(clean[2])
    cuda.enable_cudnn_sdp(clean[3])


_SETTINGS: Mapping[str, Setting] = {
    "autocast": Setting(_autocast, _put_back_autocast),
    "attention": Setting(_attention, _put_back_attention),
    "tensor sharing": Setting(
        torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    ),
    "inference mode": Setting(torch.is_inference_mode_enabled, None),
    "inter-op threads": Setting(torch.get_num_interop_threads, None),
}
