"""A rank's batches, one for each forward pass of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from trainers.data.stream import Batch
from trainers.learner import Learner
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks
from trainers.parallel.shared import Shared
from trainers.parallel.single import Single
from trainers.parallel.update import Everywhere
from trainers.training import read_training

CPU = torch.device("cpu")


def test_batches_of_an_evaluation_that_all_ranks_make_are_taken_as_they_are_needed() -> None:
    """A validation set of images does not fit into memory at once."""
    model, ranks = nn.Linear(4, 3), Ranks(0, 1, CPU)
    parallel = Shared(Single(model, ranks, Forward(CPU)), ranks, counts=True)
    training, _ = read_training({"lr": 0.1}, {}, "here")
    learner = Learner(model, parallel, Everywhere(), ranks, training, Forward(CPU))
    made: list[int] = []
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(len(made)))

    def batches() -> Iterator[Batch]:
        for number in range(3):
            made.append(number)
            yield torch.rand(2, 4), torch.zeros(2, 1, dtype=torch.int64)

    assert learner.evaluate(batches())[2] == 6
    assert seen == [1, 2, 3]
