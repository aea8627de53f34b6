"""The view with which MLflow's UI opens a study: its columns, their order, and its charts.

MLflow keeps views as tags of the experiment, and an address with a view's key opens it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from autotune.tracking.run_content import confirmed_key, result_key
from autotune.trial import STEPS, Params, Target, Trial

KIND = {"mlflow.experimentKind": "custom_model_development"}  # its UI shows runs, not chats
SECONDS = "train_seconds"
_TAG = "mlflow.sharedViewState."
_COLUMN_KNOBS = ("lr", "batch_size")
_TOP = 20  # runs that the charts show
_LEFT_OUT = ("study", "confirm", "race", "probe")  # of the table, which has the confirmed times
_OURS, _OTHERS, _CLOCK = "autotune", "others", "clock"  # the sections of charts
_RUN_NAME, _LAST_COLUMNS = "attributes.`Run Name`", ("runDateAndNestInfo", "duration")
_NAME_WIDTH, _NARROWEST, _WIDEST = 150, 95, 180  # of columns, pixels
_CHART_HEIGHT = 340  # pixels; one below the other, as MLflow's panels leave little width
_SECTIONS = ((_OURS, "Study"), (_OTHERS, "Model metrics"), (_CLOCK, "clock"))

Shown = Callable[[str], str]


def view_key(study_id: str) -> str:
    """The key of a study's view, as an address in MLflow's UI has it."""
    return f"autotune-{study_id[:12]}"


def tag_name(study_id: str) -> str:
    """The experiment's tag that has the study's view."""
    return f"{_TAG}{view_key(study_id)}"


def order(target: Target) -> tuple[str, bool]:
    """The metric of a run by which a study is ranked, and whether less is better."""
    return result_key(target), target.timed or target.mode == "min"


def experiment_tags(
    study_id: str, target: Target, trials: Collection[Trial], metric: Shown, param: Shown
) -> dict[str, str]:
    """The experiment's tags: the study's view, and that it has training runs.

    `metric` and `param` give the names under which the store has a metric and a param.
    """
    state = view_state(study_id, target, trials, metric, param)
    packed = base64.b64encode(zlib.compress(json.dumps(state, sort_keys=True).encode())).decode()
    return {**KIND, tag_name(study_id): f"deflate;{packed}"}


def view_state(
    study_id: str, target: Target, trials: Collection[Trial], metric: Shown, param: Shown
) -> dict[str, Any]:
    """The state of MLflow's page of runs; what it lacks is as MLflow has it by default."""
    ranked, ascending = order(target)
    points = [t.point for t in trials if t.point]
    names = varied(points)
    knobs = [name for knob in _COLUMN_KNOBS if (name := _column(knob, points, trials))]
    columns = [
        _column_id("tags", "autotune.state"),
        _column_id("metrics", metric(ranked)),
        _column_id("metrics", metric(confirmed_key(target))),
        *(_column_id("params", param(name)) for name in knobs),
    ]
    charts = [
        _line(metric(target.metric), None if target.clock == STEPS else metric(SECONDS)),
        *_search_charts(names, points, metric(ranked), param),
    ]
    unlike = "".join(f" AND tags.`autotune.kind` != '{kind}'" for kind in _LEFT_OUT)
    own = f"tags.`autotune.study_id` = '{study_id}'{unlike}"
    return {
        "searchFilter": own,
        "orderByKey": _column_id("metrics", metric(ranked)),
        "orderByAsc": ascending,
        "selectedColumns": columns,
        "columnOrder": [_RUN_NAME, *columns, *_LAST_COLUMNS],
        "columnWidths": {_RUN_NAME: _NAME_WIDTH, **{c: _width(c) for c in columns}},
        "runsHiddenMode": f"FIRST_{_TOP}_RUNS",
        "compareRunCharts": charts,
        "compareRunSections": [_section(key, name) for key, name in _SECTIONS],
        "isAccordionReordered": True,  # the study's section stays the first
    }


def varied(points: Sequence[Params]) -> list[str]:
    """The parameters that every point has and that are not the same in all; all, for one point."""
    common = [n for n in (points[0] if points else ()) if all(n in p for p in points)]
    differ = [n for n in common if len({repr(p[n]) for p in points}) > 1]
    return differ if len(points) > 1 else common


def _column(knob: str, points: Sequence[Params], trials: Collection[Trial]) -> str | None:
    """The param that shows a knob: searched as a number if it was, else as it was configured."""
    searched = {name for point in points for name in point}
    for name in (knob, f"{knob}.peak", f"{knob}.effective.peak", f"{knob}.effective"):
        if name in searched:
            return name
    return knob if any(knob in t.config for t in trials) else None


def _column_id(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _width(column: str) -> int:
    """Pixels for the column's head."""
    name = column.partition("`")[2].rstrip("`")
    return min(max(8 * len(name) + 30, _NARROWEST), _WIDEST)


def _search_charts(
    names: Sequence[str], points: Sequence[Params], ranked: str, param: Shown
) -> list[dict[str, Any]]:
    """What the search says: the result against each of two parameters, and against all."""
    numeric = [n for n in names if all(_is_number(p[n]) for p in points)]
    first = sorted(numeric, key=_column_rank)
    result = {"key": ranked, "type": "METRIC"}
    axes = [{"key": param(name), "type": "PARAM"} for name in first]
    charts = [_scatter(axis, result) for axis in axes[:1]]
    if names:
        charts.append(_parallel([param(name) for name in names], ranked))
    if len(axes) > 1:
        contour = {"xaxis": axes[0], "yaxis": axes[1], "zaxis": result}
        charts.append(_chart("CONTOUR", "contour", contour))
    return charts


def _column_rank(name: str) -> int:
    """Learning rates first, then batch sizes, then the others in their order."""
    places = [i for i, k in enumerate(_COLUMN_KNOBS) if name in (k, f"{k}.peak")]
    return places[0] if places else len(_COLUMN_KNOBS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _chart(kind: str, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    common = {"type": kind, "uuid": f"{_OURS}-{name}", "metricSectionId": _OURS}
    return {**common, "runsCountToCompare": _TOP, "isGenerated": False, "deleted": False, **own}


def _line(metric: str, seconds: str | None) -> dict[str, Any]:
    """The metric over seconds of training; over steps, where the target's clock counts these."""
    own = {
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "displayName": f"{metric} over {'seconds' if seconds else 'steps'}",
        "xAxisKey": "metric" if seconds else "step",
        "selectedXAxisMetricKey": seconds or "",
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": True,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "range": {},
    }
    return _chart("LINE", "curve", own)


def _scatter(axis: Mapping[str, str], result: Mapping[str, str]) -> dict[str, Any]:
    return _chart("SCATTER", "scatter", {"xaxis": axis, "yaxis": result})


def _parallel(params: Sequence[str], ranked: str) -> dict[str, Any]:
    own = {"selectedParams": [*params], "selectedMetrics": [ranked], "showAllRuns": False}
    return _chart("PARALLEL", "parallel", own)


def _section(key: str, name: str) -> dict[str, Any]:
    generated = {"isReordered": False, "deleted": False, "isGenerated": key != _OURS}
    place = {"columns": 1, "cardHeight": _CHART_HEIGHT} if key == _OURS else {}
    return {"uuid": key, "name": name, "display": key == _OURS, **generated, **place}
