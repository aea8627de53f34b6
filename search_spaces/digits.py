"""scikit-learn's 8x8 digits with a small residual network on two ranks: seconds per trial."""

from __future__ import annotations

from pathlib import Path

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace
from autotune.study.experiment import Experiment
from autotune.trial import Limit, Target
from autotune.trial.scaling import Scaling
from search_spaces import _image
from search_spaces._small import small_mlp

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
    return _image.searched(
        PROBLEM, "sgd", {**_image.SGD_BASELINE, "batch_size": 64, "horizon": 60.0}
    )


def lars() -> Experiment:
    """LARS; the baseline is its paper's quadratic decay, at a larger batch."""
    return _image.searched(
        PROBLEM, "lars", {**_image.LARS_BASELINE, "batch_size": 256, "horizon": 50.0}
    )


def lamb() -> Experiment:
    """LAMB; the baseline is its paper's linear decay, at a larger batch."""
    return _image.searched(
        PROBLEM, "lamb", {**_image.LAMB_BASELINE, "batch_size": 256, "horizon": 50.0}
    )


def adamw() -> Experiment:
    """AdamW; the baseline is a cosine from 0.01 over 15 epochs."""
    baseline = {**_image.ADAMW_BASELINE, "batch_size": 64, "horizon": 15.0}
    return _image.searched(PROBLEM, "adamw", baseline)


def nadamw() -> Experiment:
    """AdamW with Nesterov momentum; the baseline is that of `adamw`."""
    baseline = {**_image.ADAMW_BASELINE, "batch_size": 64, "horizon": 15.0}
    return _image.searched(PROBLEM, "nadamw", baseline)


def muon() -> Experiment:
    """Muon for kernels, AdamW for the rest; the baseline's schedule is that of `adamw`."""
    baseline = {**_image.MUON_BASELINE, "batch_size": 64, "horizon": 15.0}
    return _image.searched(PROBLEM, "muon", baseline)


def schedulefree() -> Experiment:
    """Schedule-free AdamW; the baseline stays at 0.01 after a short warm-up."""
    baseline = {**_image.SCHEDULEFREE_BASELINE, "batch_size": 64, "horizon": 30.0}
    return _image.searched(PROBLEM, "schedulefree_adamw", baseline)


def schedulefree_sgd() -> Experiment:
    """Schedule-free SGD; the baseline stays at 3 after a short warm-up."""
    baseline = {**_image.SCHEDULEFREE_SGD_BASELINE, "batch_size": 64, "horizon": 30.0}
    return _image.searched(PROBLEM, "schedulefree_sgd", baseline)


def optimizers() -> Experiment:
    """The optimizer is searched too; the baseline is that of `sgd`."""
    return _image.optimizers(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 64, "horizon": 60.0})


def plans() -> Experiment:
    """SGD, and how two ranks divide the work; the baseline is that of `sgd`."""
    return _image.plans(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 64, "horizon": 60.0})


def communication() -> Experiment:
    """SGD, and what two ranks send of their gradients; the baseline is that of `sgd`, plain."""
    return _image.communication(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 64, "horizon": 60.0})


def warmup_stable_decay() -> Experiment:
    """SGD whose trials share a stable phase and end it by different decays (`--shared-beginnings`).

    Warm-up, stable phase and decay are from MiniCPM (arXiv 2404.06395); the decays reach from a
    twentieth to half of the training. What acts from the first step on has three values.
    """
    entries: dict[str, SpaceEntry] = {
        "milestone": Fixed(720),
        "horizon": Fixed(20.0),
        "batch_size": Fixed(64),
        "nesterov": Fixed(True),
        "weight_decay": Fixed(5e-4),
        "momentum": Choice((0.8, 0.9, 0.95)),
        "lr": ScheduleSpace(
            0.1,
            family="wsd",
            final=Float(0.001, 0.2, log=True),
            warmup=0.05,
            decay=Float(0.05, 0.5, log=True),
        ),
    }
    baseline = {"momentum": 0.9, "lr.final": 0.001, "lr.decay": 0.2}
    return PROBLEM.experiment("sgd", entries, baseline, name="warmup-stable-decay")


def small(teacher: Path | None = None) -> Experiment:
    """A perceptron whose file has at most 100 KB, within a percentage point of a dense one.

    The dense one, of 1.2 MB, comes to an accuracy of 98.2 % (docs/how-to/smaller-models.md), and
    the target is 97.5 %.

    Args:
        teacher: a trained model to learn from, `best_model.pt` of a study or models:/NAME/VERSION.
    """
    target = Target("val_accuracy", 0.975, limit=120.0)
    return small_mlp("digits", target, [Limit("model_megabytes", 0.1)], teacher)


def schedules() -> Experiment:
    """SGD with schedules of learning rate, batch size, momentum, image size; `sgd`'s baseline."""
    baseline = {"batch_size.peak": 64, "horizon": 60.0}
    return _image.schedules(PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})
