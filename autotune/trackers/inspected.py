"""A picture of a controller's file: which feature drives which knob, and how strongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICY = "controller.json"


def draw_weights(document: Mapping[str, Any]) -> Figure:
    """A bar a feature and knob: its weight times how large the feature usually is.

    Without trials to tell how large it is, the weight alone.
    """
    from matplotlib.figure import Figure

    weights, influence = document["weights"], document.get("influence", {})
    names = list(document["features"])
    figure = Figure(figsize=(1 + 4 * len(weights), 4), layout="constrained")
    all_axes = figure.subplots(1, len(weights), squeeze=False, sharey=True)[0]
    for axes, (knob, row) in zip(all_axes, weights.items(), strict=True):
        sizes = influence.get(knob, {})
        shown = sizes if any(sizes.values()) else row
        signs = {name: -1 if row.get(name, 0.0) < 0 else 1 for name in names}
        lengths = [signs[name] * abs(shown.get(name, 0.0)) for name in names]
        axes.barh(names, lengths, color=["C3" if x < 0 else "C0" for x in lengths])
        axes.axvline(0.0, color="black", linewidth=0.5)
        axes.set_title(f"{knob}: weight" + (" x usual size of feature" if shown is sizes else ""))
    all_axes[0].invert_yaxis()
    return figure
