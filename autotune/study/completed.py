"""A study with nothing left to do, which is shown without starting anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.algorithms.ranking.disturbed import to_run_again
from autotune.algorithms.ranking.finalists import next_to_confirm
from autotune.algorithms.ranking.repeats import all_failed, confirming
from autotune.storage.journal import Journal
from autotune.study.options import StudyOptions
from autotune.study.result import StudyResult, of_entries
from autotune.trial import Target


def complete(result: StudyResult, options: StudyOptions) -> bool:
    """Whether nothing is left to search or, without a search, to confirm."""
    search, repeats, top = options.search, options.repeats, options.top
    if search and not options.seeds and to_run_again(result.trials, result.target) is not None:
        return False
    if any(t.resumable for t in (result.trials if search else confirming(result.trials))):
        return False
    left = next_to_confirm(result.trials, result.target, repeats, top) is not None
    return not left and (not search or len(result.searched) >= options.trials)


def completed(
    journal: Journal, target: Target, options: StudyOptions, again: Callable[..., StudyResult]
) -> StudyResult | None:
    """The result of the study of this journal, if nothing is left to do; MLflow catches up with it.

    None where a pool was given, which says that it is to be used. `again` confirms the result.
    """
    if options.pool is not None:
        return None
    folder = journal.path.parent
    result = of_entries(folder, target, journal.entries)
    if all_failed(result.trials) or not complete(result, options):
        return None
    if options.tracking_uri != "off":
        from autotune.tracking import mirror

        mirror.catch_up(folder, options.tracking_uri, 60.0)
    return replace(result, ended="done", _again=again)
