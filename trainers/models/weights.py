"""Weights of a local file for a model that is fine-tuned: the configuration's `weights`.

A file of safetensors (`.safetensors`), or one that `torch.load(weights_only=True)` reads: a state
dictionary, alone or within `state_dict`, `model` or `weights` (`best_model.pt` of a study has the
last; what was packed there is whole again). No code of the file runs, and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.compression.packed import is_packed, unpacked
from trainers.models.library import imported, one_line

WITHIN = ("state_dict", "model", "weights")
WRAPPED = "module."  # DistributedDataParallel's prefix of every name
COUNTED = "num_batches_tracked"  # of batch normalisation; old files do not have it
FURTHER = ("aux1.", "aux2.", "AuxLogits.")  # outputs for training alone, which are left out here
_MOST_NAMED = 3


def require_file(path: str | None) -> None:
    """Raise a ValueError, one line, for weights that are to be read and are not there."""
    if path is not None and not Path(path).is_file():
        raise ValueError(_missing(path))


def _missing(path: str) -> str:
    return f"weights: there is no file {path}"


def read(path: str) -> dict[str, Tensor]:
    """The tensors of a file by their names, on the host.

    Raises:
        FileNotFoundError: there is no such file; one line.
        ValueError: it has no weights, or they cannot be read; one line.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(_missing(path))
    safe = path.endswith(".safetensors")
    library = imported("safetensors.torch", f"weights {path!r}", "timm") if safe else None
    try:
        if library is not None:
            found: Any = library.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"weights: {path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # of the format
        raise ValueError(f"weights: {path} cannot be read: {one_line(error)}") from None
    try:
        tensors = _tensors(found)
    except (KeyError, RuntimeError, ValueError) as error:  # of what `model_file` has packed
        raise ValueError(f"weights: {path} cannot be read: {one_line(error)}") from None
    if not tensors:
        raise ValueError(f"weights: {path} has no state dictionary")
    if all(name.startswith(WRAPPED) for name in tensors):
        return {name.removeprefix(WRAPPED): value for name, value in tensors.items()}
    return tensors


def _tensors(found: Any) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        return {}
    inside = next((found[key] for key in WITHIN if isinstance(found.get(key), Mapping)), found)
    known = {str(name): v for name, v in inside.items() if isinstance(v, Tensor) or is_packed(v)}
    return unpacked(known)


def load(model: nn.Module, path: str, classes: int) -> None:
    """Give a model the weights of a file, in place.

    Tensors with a row for each class (the output layer; of a language model the embedding) keep
    their new values where the file has another number of rows.

    Args:
        classes: of the model, or the tokens of its vocabulary.

    Raises:
        FileNotFoundError, ValueError: as `read`; or the file is of another model; one line.
    """
    found = read(path)
    own = model.state_dict()
    new = {name for name, value in own.items() if _of_classes(value, found.get(name), classes)}
    faults = [
        f"{name} is {_shape(found[name])} in the file and {_shape(value)} in the model"
        for name, value in own.items()
        if name in found and name not in new and found[name].shape != value.shape
    ]
    missing = (name for name in own if name not in found and not name.endswith(COUNTED))
    faults += [f"{name} is missing in the file" for name in missing]
    more = (name for name in found if name not in own and not name.startswith(FURTHER))
    faults += [f"{name} is not in the model" for name in more]
    if faults:
        raise ValueError(other_model(path, faults))
    model.load_state_dict({n: v for n, v in found.items() if n not in new}, strict=False)


def other_model(path: str, faults: Sequence[str]) -> str:
    """The line for a file whose tensors are not those of the model, with the first that differ."""
    more = f" (and {len(faults) - _MOST_NAMED} more)" if len(faults) > _MOST_NAMED else ""
    return f"weights: {path} is of another model: {'; '.join(faults[:_MOST_NAMED])}{more}"


def _of_classes(own: Tensor, found: Tensor | None, classes: int) -> bool:
    """Whether only the number of classes differs."""
    if found is None or own.dim() == 0 or found.dim() != own.dim():
        return False
    return len(own) == classes != len(found) and own.shape[1:] == found.shape[1:]


def _shape(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "a number"
