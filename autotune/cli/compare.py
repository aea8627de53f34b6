"""`autotune compare`: reads candidates, prints the table, writes report and CSV file."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from autotune.cli.console import plain_out
from autotune.errors import UserError
from autotune.evaluation.comparison import dawnbench, metrics, output, sources
from autotune.evaluation.comparison.metrics import MetricComparison
from autotune.evaluation.comparison.model import Comparison
from autotune.evaluation.comparison.table import compare


def run(options: Namespace) -> None:
    """Compare what `options` names; nothing is written unless all of it can be compared.

    Raises:
        UserError: something cannot be read, compared or written, in one line.
    """
    for file in (options.report, options.csv):
        if file is not None and not file.absolute().parent.is_dir():
            raise UserError(f"cannot write {file}: there is no folder {file.absolute().parent}")
    allow = [condition for word in options.allow for condition in word.split(",")]
    if metrics.has_no_value(options.sources):
        _write(_of_metrics(options, allow), options, metrics)
    else:
        _write(_of_times(options, allow), options, output)


def _of_times(options: Namespace, allow: Sequence[str]) -> Comparison:
    """The comparison of times to a value."""
    target = dawnbench.parse_target(options.target) if options.target is not None else None
    candidates, baseline = sources.gather(
        options.sources, options.baseline, target=target, tracking_uri=options.tracking_uri
    )
    return compare(candidates, baseline, allow=allow)


def _of_metrics(options: Namespace, allow: Sequence[str]) -> MetricComparison:
    """The comparison of studies whose target has no value."""
    if options.target is not None:
        raise UserError("--target is for times to a value, which these studies' targets lack")
    return metrics.compare(options.sources, options.baseline, allow)


def _write(
    comparison: Comparison | MetricComparison, options: Namespace, forms: ModuleType
) -> None:
    """Write and print the comparison, in the forms that the module has for its kind."""
    if options.report is not None:
        write_report(comparison, options.report)
    if options.csv is not None:
        forms.write_csv(comparison, options.csv)
    if options.json:
        print(json.dumps(forms.document(comparison), allow_nan=False))
    else:
        forms.print_table(comparison, plain_out())


def write_report(comparison: Comparison | MetricComparison, file: Path) -> None:
    """The comparison as one HTML file.

    Raises:
        UserError: this installation has no reports.
    """
    try:
        report = import_module("dashboards.report")
    except ImportError as error:
        raise UserError(f"--report needs the package dashboards: {error}") from None
    report.write_comparison(comparison, file)
