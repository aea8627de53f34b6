"""The memory that a training needs, found without allocating it.

The learner's own warm-up runs on tensors without data (torch's `FakeTensorMode`), as the first of
so many ranks. Torch's `MemTracker`, a private module, adds up the tensors that are alive. Where
torch finds a GPU, those of its kernels are counted, elsewhere a CPU's, which need more. What a
kernel allocates for itself is not seen: `CALIBRATION` has its share as measured by
`benchmarks/memory_prediction.py`.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainers import parallelize
from trainers.communication import synchronization
from trainers.data.stream import Batch, passes
from trainers.knobs import is_constant
from trainers.learner import Learner
from trainers.memory import low_bit
from trainers.memory.bound import bound
from trainers.memory.precision import DTYPES
from trainers.memory.stand_ins import (
    CPU,
    Blank,
    BlankStep,
    Copies,
    Counted,
    first_of,
    kernels_of_a_gpu,
    without_numbers,
)
from trainers.parallel.ranks import Ranks
from trainers.shapes import GRID, warmed_up
from trainers.task import Task
from trainers.training import Training

if TYPE_CHECKING:  # imports of more than a second, for predictions only
    from torch.distributed._tools.mem_tracker import MemTracker

CALIBRATION = 1.05
"""Bytes that are allocated at the peak of a step for each byte that is counted."""

_PARTS = 2  # forward passes of a step: further ones need no more memory


def needed(training: Training, task: Task[Any], blank: Blank, ranks: int = 1, has: int = 0) -> int:
    """The bytes of a rank's memory at the peak of its warm-up and evaluations, with its data.

    Args:
        ranks: of the training.
        has: bytes that a rank has; any upper bound of what it needs that is below will do.

    Raises:
        ValueError: a plan that is not for so many ranks; a training of which there is only a bound
            (`_require_counted`); a model that computes with its numbers; one line.
        RuntimeError: several ranks, and the process has a process group.
    """
    shares = training.plan.shares(ranks)
    training = training.on(shares)
    if has:
        local, size = _largest(training, task, shares)
        sizes = (_added(training, local), size), (blank.evaluated, blank.evaluated_size)
        with suppress(RuntimeError):  # some models of libraries read numbers, which are not there
            batches = [blank.batch(*of)[0] for of in sizes]
            travelling = training.synchronization.in_flight
            most = bound(lambda: task.model(blank.stream), batches, travelling)
            if most + blank.kept <= has:
                return most + blank.kept
    return peak(training, task, blank, ranks) + blank.kept


def peak(training: Training, task: Task[Any], blank: Blank, ranks: int = 1) -> int:
    """As `needed`, without the data and without a bound."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    _require_counted(training)
    bits = training.plan.optimizer_state_bits
    plain = replace(training.plan, optimizer_state_bits=32)  # the library compiles its steps
    training = training.on(training.plan.shares(ranks))
    training = replace(training, plan=plain, state=None)
    kernels = kernels_of_a_gpu() if torch.cuda.is_available() else nullcontext()
    with first_of(ranks) as every, kernels, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallelize.data_ranks(training.plan, every)
        with FakeTensorMode():
            model = task.model(blank.stream)
            tracker = MemTracker()
            tracker.track_external(model)
            with tracker:
                learner = _learner(training, task, model, every, tracker)
                _rehearse(training, task, blank, learner)
                learner.close()
        found = tracker.get_tracker_snapshot("peak")
    counted = sum(device["Total"] for device in found.values())
    return round(CALIBRATION * (counted - low_bit.saved_bytes(bits, model)))


def _require_counted(training: Training) -> None:
    """Raise a ValueError, one line, where what is counted here is not what is needed.

    Ranks of a pipeline need different amounts, and torch's schedules read received numbers. What is
    offloaded is not in the memory of a GPU. Compiled kernels keep fewer activations.
    """
    plan = training.plan
    for key, value, counted in (
        ("pipeline_parallel_degree", plan.pipeline_parallel_degree, 1),
        ("enable_cpu_offload", plan.enable_cpu_offload, False),
        ("compile", training.compile, False),
    ):
        if value != counted:
            rule = f"must be {counted} for a prediction of memory beyond a bound"
            raise ValueError(f"{key} {rule}, got {value}")


def _rehearse(training: Training, task: Task[Any], blank: Blank, learner: Learner) -> None:
    """The warm-up, which keeps a copy of the weights; a step that adds gradients up; evaluation."""
    ranks = learner.parallel.data.size
    local, size = _largest(training, task, ranks)
    warm, step = sum(passes(local, training.microbatch)), _added(training, local)
    for count, run in ((warm, _warmed), (step, _stepped)):
        batch, samples = blank.batch(count, size), count * ranks * task.samples(size)
        with without_numbers():
            run(learner, batch, samples)
    with without_numbers():
        learner.evaluate([blank.batch(blank.evaluated, blank.evaluated_size)])


def _warmed(learner: Learner, batch: Batch, samples: int) -> None:
    learner.warm_up([(batch, samples)], [])


def _stepped(learner: Learner, batch: Batch, samples: int) -> None:
    learner.step(batch, samples, 0.0)


def _added(training: Training, local: int) -> int:
    """A rank's items in the least step that needs as much memory as one of `local` items."""
    return min(local, _PARTS * (training.microbatch or local))


def _largest(training: Training, task: Task[Any], ranks: int) -> tuple[int, int]:
    """A rank's items in the step that needs most, and their size."""
    scheduled = training.batch_size, task.size
    at = (0.0,) if all(map(is_constant, scheduled)) else GRID
    steps = [(round(scheduled[0](x)), round(scheduled[1](x))) for x in at]
    batch_size, size = warmed_up(steps, ranks, training.microbatch)[0]
    return -(-batch_size // ranks), size


def _learner(
    training: Training, task: Task[Any], model: nn.Module, ranks: Ranks, tracker: MemTracker
) -> Learner:
    units = parallelize.prepared(training.plan, model, ranks)
    dtype = DTYPES.get(training.precision)
    forward = Counted(CPU, dtype, tracker=tracker)  # another layout has as many bytes
    found = synchronization.of_one_machine(training.synchronization)
    parallel = parallelize.parallel(
        *(training.plan, model, units, ranks, forward),
        copied=Copies,
        compression=training.gradient_compression,
        synchronization=found,
    )
    step = BlankStep(parallelize.update(training.plan, ranks, parallel, None))
    return Learner(model, parallel, step, Ranks(0, 1, CPU), training, forward)
