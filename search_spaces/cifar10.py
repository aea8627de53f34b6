"""10,000 images of CIFAR-10 with a small residual network on two ranks: a minute per trial.

The recipes `gpu_...` train a ResNet-18 on all 50,000 to 94 %, on one GPU a trial.
"""

from __future__ import annotations

from autotune.space.search_space import Float, Int
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces import _image

PROBLEM = _image.Problem(
    data="cifar10",
    setting={
        "model": "resnet8",
        "width": 8,
        "augment": "flip",
        "train_size": 10_000,
        "val_size": 5000,
        "milestone": 5000,
    },
    batch_size=Int(32, 512, power_of_two=True, log=True),
    horizon=Float(4.0, 30.0, log=True),
    target=Target("val_accuracy", 0.54, limit=120.0),
    scaling=Scaling(num_workers=2),
    image_size=Int(16, 32, step=8),
)
GPU_PROBLEM = _image.Problem(
    data="cifar10",
    setting={**_image.GPU_SETTING, "milestone": 50_000},
    batch_size=Int(128, 4096, power_of_two=True, log=True),
    horizon=Float(8.0, 60.0, log=True),
    target=Target("val_accuracy", 0.94, limit=900.0),
    scaling=Scaling(gpus_per_worker=1),
    image_size=Int(16, 32, step=8),
    variant="gpu",
)


def sgd() -> Experiment:
    """SGD; the baseline is a cosine from 0.1."""
    return _image.searched(
        PROBLEM, "sgd", {**_image.SGD_BASELINE, "batch_size": 128, "horizon": 12.0}
    )


def lars() -> Experiment:
    """LARS; the baseline is its paper's quadratic decay, at a larger batch."""
    return _image.searched(
        PROBLEM, "lars", {**_image.LARS_BASELINE, "batch_size": 256, "horizon": 15.0}
    )


def lamb() -> Experiment:
    """LAMB; the baseline is its paper's linear decay, at a larger batch."""
    return _image.searched(
        PROBLEM, "lamb", {**_image.LAMB_BASELINE, "batch_size": 256, "horizon": 15.0}
    )


def schedules() -> Experiment:
    """SGD with schedules of learning rate, batch size, momentum, image size; `sgd`'s baseline."""
    baseline = {"batch_size.peak": 128, "horizon": 12.0}
    return _image.schedules(PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})


def gpu_sgd() -> Experiment:
    """`sgd` for a GPU; the baseline is a cosine from 0.4 over 30 epochs of batches of 512."""
    baseline = {**_image.SGD_BASELINE, "lr.peak": 0.4, "batch_size": 512, "horizon": 30.0}
    return _image.searched(GPU_PROBLEM, "sgd", baseline)


def gpu_lars() -> Experiment:
    """`lars` for a GPU, at a larger batch."""
    baseline = {**_image.LARS_BASELINE, "batch_size": 1024, "horizon": 30.0}
    return _image.searched(GPU_PROBLEM, "lars", baseline)


def gpu_lamb() -> Experiment:
    """`lamb` for a GPU, at a larger batch."""
    baseline = {**_image.LAMB_BASELINE, "batch_size": 1024, "horizon": 30.0}
    return _image.searched(GPU_PROBLEM, "lamb", baseline)


def gpu_schedules() -> Experiment:
    """`schedules` for a GPU; the baseline is that of `gpu_sgd`."""
    baseline = {"lr.peak": 4.0, "batch_size.peak": 512, "horizon": 30.0}
    return _image.schedules(GPU_PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})
