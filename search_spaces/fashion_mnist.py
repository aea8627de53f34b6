"""Fashion-MNIST with a multi-layer perceptron on two ranks: 10 to 20 seconds per trial.

The recipes `gpu_...` train a ResNet-18 to 93.5 %, on one GPU a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.space.search_space import Float, Int
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces import _image

_SHORT: Mapping[str, Any] = {"lr.peak": 0.003, "batch_size": 128, "horizon": 5.0}
PROBLEM = _image.Problem(
    data="fashion_mnist",
    setting={"model": "mlp", "width": 256, "val_size": 5000, "milestone": 15_000},
    batch_size=Int(32, 1024, power_of_two=True, log=True),
    horizon=Float(2.0, 20.0, log=True),
    target=Target("val_accuracy", 0.885, limit=60.0),
    scaling=Scaling(num_workers=2),
)
GPU_PROBLEM = _image.Problem(
    data="fashion_mnist",
    setting={**_image.GPU_SETTING, "milestone": 60_000},
    batch_size=Int(128, 4096, power_of_two=True, log=True),
    horizon=Float(4.0, 40.0, log=True),
    target=Target("val_accuracy", 0.935, limit=600.0),
    scaling=Scaling(gpus_per_worker=1),
    image_size=Int(12, 28, step=4),
    variant="gpu",
)


def sgd() -> Experiment:
    """SGD; the baseline is a cosine from 0.1."""
    return _image.searched(
        PROBLEM, "sgd", {**_image.SGD_BASELINE, "batch_size": 128, "horizon": 10.0}
    )


def lars() -> Experiment:
    """LARS; the baseline is its paper's quadratic decay, at a larger batch."""
    return _image.searched(
        PROBLEM, "lars", {**_image.LARS_BASELINE, "batch_size": 512, "horizon": 10.0}
    )


def lamb() -> Experiment:
    """LAMB; the baseline is its paper's linear decay, at a larger batch."""
    return _image.searched(
        PROBLEM, "lamb", {**_image.LAMB_BASELINE, "batch_size": 512, "horizon": 10.0}
    )


def adamw() -> Experiment:
    """AdamW; the baseline is a cosine from 0.003 over five epochs."""
    baseline = {**_image.ADAMW_BASELINE, **_SHORT}
    return _image.searched(PROBLEM, "adamw", baseline)


def nadamw() -> Experiment:
    """AdamW with Nesterov momentum; the baseline is that of `adamw`."""
    baseline = {**_image.ADAMW_BASELINE, **_SHORT}
    return _image.searched(PROBLEM, "nadamw", baseline)


def muon() -> Experiment:
    """Muon for matrices, AdamW for the rest; the baseline's schedule is that of `adamw`."""
    baseline = {**_image.MUON_BASELINE, **_SHORT}
    return _image.searched(PROBLEM, "muon", baseline)


def schedulefree() -> Experiment:
    """Schedule-free AdamW; the baseline stays at 0.003 after a short warm-up."""
    baseline = {**_image.SCHEDULEFREE_BASELINE, **_SHORT}
    return _image.searched(PROBLEM, "schedulefree_adamw", baseline)


def schedulefree_sgd() -> Experiment:
    """Schedule-free SGD; the baseline stays at 1 after a short warm-up."""
    baseline = {**_image.SCHEDULEFREE_SGD_BASELINE, **_SHORT, "lr.peak": 1.0}
    return _image.searched(PROBLEM, "schedulefree_sgd", baseline)


def optimizers() -> Experiment:
    """The optimizer is searched too; the baseline is that of `sgd`."""
    return _image.optimizers(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 128, "horizon": 10.0})


def schedules() -> Experiment:
    """SGD with schedules of learning rate, batch size and momentum; `sgd`'s baseline."""
    baseline = {"batch_size.peak": 128, "horizon": 10.0}
    return _image.schedules(PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})


def gpu_sgd() -> Experiment:
    """`sgd` for a GPU; the baseline is a cosine from 0.4 over 20 epochs of batches of 512."""
    baseline = {**_image.SGD_BASELINE, "lr.peak": 0.4, "batch_size": 512, "horizon": 20.0}
    return _image.searched(GPU_PROBLEM, "sgd", baseline)


def gpu_lars() -> Experiment:
    """`lars` for a GPU, at a larger batch."""
    baseline = {**_image.LARS_BASELINE, "batch_size": 1024, "horizon": 20.0}
    return _image.searched(GPU_PROBLEM, "lars", baseline)


def gpu_lamb() -> Experiment:
    """`lamb` for a GPU, at a larger batch."""
    baseline = {**_image.LAMB_BASELINE, "batch_size": 1024, "horizon": 20.0}
    return _image.searched(GPU_PROBLEM, "lamb", baseline)


def gpu_schedules() -> Experiment:
    """`schedules` for a GPU; the baseline is that of `gpu_sgd`."""
    baseline = {"lr.peak": 4.0, "batch_size.peak": 512, "horizon": 20.0}
    return _image.schedules(GPU_PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})
