"""Layers dealt out over the ranks, which work on different microbatches at a time (pipeline).

The schedules are torch's, and say in which order a rank makes the passes of its stages:

| `pipeline_parallel_schedule` | |
|---|---|
| GPipe | all forward passes, then all backward passes: Huang et al. 2019, arXiv 1811.06965 |
| 1F1B | one forward, one backward: fewer activations; Narayanan et al. 2019, arXiv 1806.03377 |
| Interleaved1F1B | with two stages a rank: Narayanan et al. 2021, arXiv 2104.04473 |
| LoopedBFS | with two, stage by stage: Lamy-Poirier 2022, arXiv 2211.05953 |
| InterleavedZeroBubble | a rank that would wait computes gradients of weights: Qi et al. 2023, |
| | arXiv 2401.10241 |
| ZBVZeroBubble | with two stages a rank, there and back: the same |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.data.stream import NO_LABEL, Batch
from trainers.parallel.passes import Passed, Shapes, microbatches, scheduled
from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks, average
from trainers.parallel.stages import STAGES, Holdings, Staged, ranks_of
from trainers.parallel.states import load
from trainers.readers import one_of
from trainers.readers import whole as count
from trainers.technique import Knob, When

MOST = 8  # schedules that are kept, with their buffers
_WHERE = When(
    "pipeline_parallel_degree other than 1", lambda plan: plan["pipeline_parallel_degree"] != 1
)
KNOBS: Mapping[str, Knob] = {
    "pipeline_parallel_degree": Knob(1, count(1), "exact"),
    "pipeline_parallel_schedule": Knob("1F1B", one_of(STAGES), "exact", _WHERE),
}


def check_model(degree: int, schedule: str, layers: int) -> None:
    """Raise a ValueError for a model of fewer layers than stages."""
    stages = degree * STAGES[schedule]
    if degree > 1 and layers < stages:
        raise ValueError(
            f"layers must be at least {stages}, the stages of pipeline_parallel_schedule "
            f"{schedule!r} on pipeline_parallel_degree {degree}, got {layers}"
        )


def check_recomputed(schedule: str) -> None:
    """Raise a ValueError for a schedule whose two backward passes would each take what was kept."""
    if schedule.endswith("ZeroBubble"):
        allowed = ", ".join(name for name in STAGES if not name.endswith("ZeroBubble"))
        raise ValueError(
            f"selective_ac_option 'op' needs pipeline_parallel_schedule {allowed}, got {schedule!r}"
        )


class Pipelined:
    """A model of which every rank of the pipeline has some layers.

    Args:
        model: says its `stages`; changed in place.
        data: the ranks that have different samples.
        place: this rank in its pipeline.
        schedule: one of `STAGES`.
    """

    collective = True
    exchange = None

    def __init__(
        self, model: Any, data: Ranks, place: Ranks, forward: Forward, schedule: str
    ) -> None:
        self.data = data
        self._model, self._place, self._forward, self._kind = model, place, forward, schedule
        self._places = ranks_of(schedule, place.size)
        stages = model.stages(len(self._places))
        self._holdings = Holdings(model, stages, self._places, place)
        self.owned = self._holdings.owned
        self.update = Staged(self._holdings, forward)
        own = {i: s for i, s in enumerate(stages) if self._places[i] == place.rank}
        self._own = {index: Passed(stage, forward) for index, stage in own.items()}
        self.counts = len(self._places) - 1 in self._own
        self.network: nn.Module = nn.ModuleList(self._own.values())
        self._width: int = model.embedding.embedding_dim
        self._schedules: dict[tuple[int, ...], Any] = {}
        self._loss: Loss | None = None

    def at(self, progress: float) -> None: ...

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        x, y = (torch.cat(found) for found in zip(*parts, strict=True))
        count, size = microbatches(len(y), len(parts), self._place.size)
        missing = count * size - len(y)
        x, y = F.pad(x, (0, 0, 0, missing)), F.pad(y, (0, 0, 0, missing), value=NO_LABEL)
        key = count, size, x.shape[1]
        if key not in self._schedules:
            if len(self._schedules) == MOST:
                self._schedules.clear()
            of_step = len(self._places), Shapes(*key, self._width), self._place
            made = scheduled(self._kind, self._own, *of_step, self._loss_of)
            self._schedules[key] = made
        self._loss = loss
        first, last = [x] if 0 in self._own else [], {"target": y} if self.counts else {}
        self._schedules[key].step(*first, **last, return_outputs=False)
        with self._forward.waiting():
            self._holdings.add_up()
            average([p.grad for p in self.owned.parameters if p.grad is not None], self.data)

    def _loss_of(self, out: Tensor, y: Tensor) -> Tensor:
        assert self._loss is not None
        with self._forward.autocast():
            return self._loss(out, y)

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        raise AssertionError("a pipeline needs all ranks")

    def evaluate(self, x: Tensor) -> Tensor | None:
        """Stage by stage; the ranks of earlier stages go on with the next batch."""
        shape, group, me = (*x.shape, self._width), self._place.group, self._place.rank
        for index, stage in self._own.items():
            if index and self._places[index - 1] != me:
                x = torch.empty(shape, device=self.data.device)
                dist.recv(x, group=group, group_src=self._places[index - 1])
            x = stage(x)
            if index + 1 < len(self._places) and self._places[index + 1] != me:
                dist.send(x.contiguous(), group=group, group_dst=self._places[index + 1])
        return x if self.counts else None

    def labels(self, y: Tensor) -> Tensor:
        return y

    def changed(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return self._holdings.state()

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        return load(state, self._model, optimizer)

    def close(self) -> None:
        """Free the schedules, which keep the stages and buffers for what they receive."""
        self._schedules.clear()
        self._own.clear()
        del self.network, self._model, self._holdings, self.update, self.owned
