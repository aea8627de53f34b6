"""The complete schedules of record runs of ImageNet training, as values.

Facts from the entries of DAWNBench (github.com/stanford-futuredata/dawn-bench-entries), all on 128
V100 GPUs with ResNet-50 to 93 % top-5; every length is in epochs. Settings that an entry does not
publish are left out, and the description says so. `RECORDS[name].config()` gives the keys for the
trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.schedules import (
    Cosine,
    Linear,
    LinearCosine,
    Mirrored,
    OneCycle,
    Schedule,
    as_schedule,
    scaled,
    stages,
)


@dataclass(frozen=True)
class Record:
    """A published run.

    Args:
        description: who, when, with what; and what the entry does not publish.
        seconds: time to 93 % top-5, without evaluation.
        epochs: the horizon of the schedules.
        lr, batch_size, image_size, momentum: schedules over these epochs.
        settings: the other keys of the trainer's configuration.
    """

    description: str
    seconds: float
    epochs: int
    lr: Schedule
    batch_size: Schedule
    image_size: Schedule
    momentum: Schedule = field(default_factory=lambda: as_schedule(0.9))
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, batch: float = 1.0, image: float = 1.0) -> dict[str, Any]:
        """The keys for the trainer; batches and images can be scaled down to a smaller machine.

        With smaller batches the learning rate is reduced by the linear rule.
        """
        return {
            "lr": scaled(self.lr, batch),
            "batch_size": scaled(self.batch_size, batch),
            "image_size": scaled(self.image_size, image),
            "momentum": self.momentum,
            "horizon": float(self.epochs),
            **self.settings,
        }


_MOXING_LR = LinearCosine(28.0, 0.2)

RECORDS: Mapping[str, Record] = {
    "fast.ai": Record(
        description="fast.ai/DIUx, PyTorch 0.4.1, 2018-09-06",
        seconds=1085.2,
        epochs=40,
        lr=stages(
            (6, Linear(1.88, 3.76)), (10, 1.88), (3, 0.2506667), (12, 0.02506667), (9, 0.0376)
        ),
        batch_size=stages((6, 8192), (10, 16384), (3, 8192), (18, 24576), (3, 16384)),
        image_size=stages((16, 128), (21, 224), (3, 288)),
        settings={"optimizer": "sgd", "weight_decay": 1e-4, "nesterov": False},
    ),
    "modelarts-mxnet": Record(
        description="Huawei ModelArts, MXNet, 2018-12-30",
        seconds=561.2,
        epochs=30,
        lr=stages(
            (6, Linear(1.92, 3.84)), (8, 3.84), (3, Linear(3.84, 1.92)), (13, Cosine(1.92, 0.0192))
        ),
        batch_size=stages((6, 8192), (11, 16384), (11, 20480), (2, 16384)),
        image_size=stages((14, 128), (14, 224), (2, 288)),
        settings={"optimizer": "sgd", "weight_decay": 1.1e-4, "nesterov": True},
    ),
    "modelarts-moxing": Record(
        description="Huawei ModelArts, MoXing 1.13 and TensorFlow 1.13, 2019-05-08; "
        "LARS's coefficient and a warm-up are not published",
        seconds=162.3,
        epochs=36,
        lr=_MOXING_LR,
        batch_size=stages((35, 32768), (1, 16384)),
        image_size=stages((15, 96), (16, 128), (4, 224), (1, 288)),
        momentum=Mirrored(_MOXING_LR, low=0.90, high=0.98),
        settings={"optimizer": "lars", "weight_decay": 1e-4, "nesterov": True},
    ),
    "aiacc": Record(
        description="Alibaba AIACC, TensorFlow 2.1, 2020-03-17; "
        "the warm-up is taken to start at 0; weight decay is not published",
        seconds=157.6,
        epochs=28,
        lr=OneCycle(0.0, 25.0, 0.2, peak_at=0.5, shape="linear"),
        batch_size=stages((27, 32768), (1, 16384)),
        image_size=stages((13, 96), (11, 128), (3, 224), (1, 288)),
        momentum=OneCycle(0.98, 0.90, 0.98, peak_at=0.5, shape="linear"),
        settings={
            "optimizer": "lars",
            "trust_coefficient": 8e-4,
            "trust_min": 1e-5,
            "trust_max": 1.0,
            "label_smoothing": 0.1,
        },
    ),
}
