"""Plots of schedules, in a module of their own so that matplotlib is imported only for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_POINTS = 1001  # every tenth of a per cent of progress


def plot(schedule: Callable[[Any], Any], ax: Axes | None = None) -> Axes:
    """Draw one schedule over progress, on a new pyplot figure unless `ax` is given."""
    import numpy as np

    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    progress = np.linspace(0.0, 1.0, _POINTS)
    ax.plot(progress, schedule(progress))
    ax.set_xlabel("progress")
    ax.set_title(str(schedule), fontsize="small", wrap=True)
    return ax


def draw(named: Mapping[str, Callable[[Any], Any]]) -> Figure:
    """One figure with a panel for every named schedule, free of pyplot's global state.

    Args:
        named: at least one schedule by the name of its knob, as in `{"lr": ..., "momentum": ...}`.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    if not named:
        raise ValueError("draw needs at least 1 schedule, got 0")
    figure = Figure(figsize=(6.4, 2.4 * len(named)), layout="constrained")
    panels = figure.subplots(len(named), squeeze=False)[:, 0]
    for ax, (name, schedule) in zip(panels, named.items(), strict=True):
        plot(schedule, ax).set_ylabel(name)
    return figure
