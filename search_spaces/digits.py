"""scikit-learn's 8x8 digits with a small residual network on two ranks: seconds per trial."""

from __future__ import annotations

from autotune.space.search_space import Float, Int
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces import _image

PROBLEM = _image.Problem(
    data="digits",
    setting={"model": "resnet8", "width": 32, "augment": "crop", "milestone": 2560},
    batch_size=Int(16, 512, power_of_two=True, log=True),
    horizon=Float(8.0, 80.0, log=True),
    target=Target("val_accuracy", 0.985, limit=30.0),
    scaling=Scaling(num_workers=2),
    image_size=Int(4, 8, step=2),
)


def sgd() -> Experiment:
    """SGD; the baseline is a cosine from 0.1, over more epochs than it needs."""
    return _image.sgd(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 64, "horizon": 60.0})


def lars() -> Experiment:
    """LARS; the baseline is its paper's quadratic decay, at a larger batch."""
    return _image.lars(PROBLEM, {**_image.LARS_BASELINE, "batch_size": 256, "horizon": 50.0})


def lamb() -> Experiment:
    """LAMB; the baseline is its paper's linear decay, at a larger batch."""
    return _image.lamb(PROBLEM, {**_image.LAMB_BASELINE, "batch_size": 256, "horizon": 50.0})


def schedules() -> Experiment:
    """SGD with schedules of learning rate, batch size, momentum, image size; `sgd`'s baseline."""
    baseline = {"batch_size.peak": 64, "horizon": 60.0}
    return _image.schedules(PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})
