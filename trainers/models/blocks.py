"""The blocks of any model: what is sharded, or computed again, on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

SEQUENCES = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_MOST = 0.5  # of a block's parameters; where several blocks inside it have more, these are meant


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model in their order: residual blocks, layers of a transformer.

    They are modules of several layers that stand in a sequence. Where several of them are within
    another (a stage of blocks) and have most of its parameters, these are meant. In a model without
    such sequences they are the modules of several layers whose class occurs several times; in one
    without these, the linear and convolutional layers of its sequences.

    >>> block = lambda: nn.TransformerEncoderLayer(8, 2, 8)
    >>> len(blocks(nn.Sequential(nn.Linear(4, 8), block(), block(), nn.Linear(8, 2))))
    2
    >>> len(blocks(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))))
    2
    """
    return [*_in_sequence(model, within=False)] or _repeated(model) or [*_layers(model)]


def _in_sequence(module: nn.Module, within: bool) -> Iterator[nn.Module]:
    """The blocks of a module, and itself if it is `within` a sequence."""
    sequence = isinstance(module, SEQUENCES)
    inner = [b for child in module.children() for b in _in_sequence(child, sequence)]
    is_block = within and not sequence and _composed(module)
    is_stage = len(inner) > 1 and sum(map(_size, inner)) > _MOST * _size(module)
    if is_block and not is_stage:
        yield module
    else:
        yield from inner


def _repeated(model: nn.Module) -> list[nn.Module]:
    """The outermost modules of several layers, of classes that occur several times."""
    counts = Counter(type(module) for module in model.modules())

    def within(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            several = counts[type(child)] > 1 and not isinstance(child, SEQUENCES)
            if several and _composed(child):
                yield child
            else:
                yield from within(child)

    return list(within(model))


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        if isinstance(module, SEQUENCES):
            yield from (child for child in module.children() if isinstance(child, LAYERS))


def _composed(module: nn.Module) -> bool:
    """Whether the module has several matrices, and parts that have parameters."""
    matrices = sum(p.ndim > 1 for p in module.parameters())
    return matrices > 1 and any(map(_size, module.children()))


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
