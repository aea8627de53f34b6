"""10,000 images of CIFAR-10 with a small residual network on two ranks: a minute per trial."""

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
    scaling=Scaling(num_workers=2, cpus_per_worker=1),
    image_size=Int(16, 32, step=8),
)


def sgd() -> Experiment:
    """SGD; the baseline is a cosine from 0.1."""
    return _image.sgd(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 128, "horizon": 12.0})


def lars() -> Experiment:
    """LARS; the baseline is its paper's quadratic decay, at a larger batch."""
    return _image.lars(PROBLEM, {**_image.LARS_BASELINE, "batch_size": 256, "horizon": 15.0})


def lamb() -> Experiment:
    """LAMB; the baseline is its paper's linear decay, at a larger batch."""
    return _image.lamb(PROBLEM, {**_image.LAMB_BASELINE, "batch_size": 256, "horizon": 15.0})


def schedules() -> Experiment:
    """SGD with schedules of learning rate, batch size, momentum, image size; `sgd`'s baseline."""
    baseline = {"batch_size.peak": 128, "horizon": 12.0}
    return _image.schedules(PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})
