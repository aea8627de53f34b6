"""`run`: makes the parts of a study and starts its loop.

The only module that knows all protocols. What happens then is in `autotune.study.driver.loop`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from autotune.backends.machine_load import is_watched, look, start_warning
from autotune.backends.protocol import Pool
from autotune.errors import UserError
from autotune.storage.journal import JOURNAL, Journal
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import earlier, factory, place, warm_start
from autotune.study.completed import completed
from autotune.study.continuing import check_mirrored, continued, in_its_space, with_result
from autotune.study.display.shown import Display, shown
from autotune.study.driver.loop import Loop
from autotune.study.driver.state import StudyState
from autotune.study.experience import keeping, starts
from autotune.study.experiment import Experiment, check_trainer
from autotune.study.factory import Parts
from autotune.study.keywords import by_keyword
from autotune.study.manifest import Manifest, manifest_scaling, resolved
from autotune.study.options import StudyOptions
from autotune.study.result import StudyResult
from autotune.study.watches import after_notes, metered, one_after_the_other, saving
from autotune.trial import INTERRUPTED, Trial


@by_keyword(StudyOptions)
def run(experiment: Experiment, options: StudyOptions) -> StudyResult:
    """Search the configuration that reaches the experiment's target soonest.

    Names of samplers, pruners, controllers and backends may be in any case.

    Args:
        experiment: what is searched, with which trainer, and to which target.
        trials: how many trials the study has in all, baseline and given configurations included.
        time_limit: seconds, or a text like "10m", after which running trials are censored
            (`budget`) and the study ends.
        sampler: `auto` (by `study.defaults`, unless the study has one), `experienced`,
            `convergence`, `tpe`, `widening`, `policy` (or `policy:FILE.npz`), `policy:elite`,
            `random`, `qmc`, `gp`, `cmaes`, `nsga2`, the dotted path of an Optuna sampler with
            keyword arguments, or an object with `ask(number, trials)`.
        pruner: `convergence`, `slower_than_best`, `bottom_at_same_time`, `asha`, `hyperband`,
            `forecast`, `policy`, `none`, by name or with keyword arguments as in
            `asha(reduction=2)`, a function (see `autotune.algorithms.pruners.rules`), or its name
            as `module:function` or `file.py:function`.
        controller: turns knobs of running trials, or forks them: `policy`, `regulator`,
            `noise_scale`, `pbt`, `autolrs`, each with or without keyword arguments (see
            `algorithms.controllers`), a function (trial, others, target) -> Change | Fork | None,
            or its name as for a pruner.
        out: the study folder; `studies/NAME` by default.
        workers: ranks of one trial; by default as the experiment's `Scaling` says.
        cpus_per_worker: CPU cores of a rank, in place of the `Scaling`'s.
        gpus_per_worker: GPUs of a rank, in place of the `Scaling`'s; 0 for none. Where neither says
            it, each rank gets one if the cluster has enough, and a line says so.
        wait_idle: seconds, or a text like "10m", to wait, at most, for an idle machine before
            confirmations; by default a line warns where other processes use it.
        tracking_uri: MLflow's tracking store; by default `mlflow.db` in the study folder
            (none on a virtual clock); "off" for none.
        max_concurrent_trials: how many trials run at once, in place of the `Scaling`'s.
        backend: `ray`; `local`: processes of this machine, without a cluster, or with one rank and
            `max_concurrent_trials=1` this very process; `auto`: that of the study in the folder,
            else local for trials of one rank on this machine's CPUs, and Ray for all others; or a
            pool.
        ray_address: a Ray cluster's address; by default Ray is started on this machine.
        seed: of the sampler and, with the trial's number, of each trial.
        seeds: of the trials themselves, one for each, when all are repeats of one configuration
            (`kind` "confirm", as in a replay).
        repeats: how often to run the best configurations and the baseline again on fresh seeds
            when the search is over, in turns and each alone on the hardware; these trials are not
            counted in `trials`. See `StudyResult.confirmed`.
        top: how many of the best configurations to run again.
        search: False to start no new trials of the search, and only run the `repeats`.
        racing: share of the training seconds, below 1, for running the leader again on fresh seeds
            during the search, up to ten runs of a configuration (see `ranking.racing`); 0 for none.
            By default (None) the share of the resumed study; for a new one 0.2 in a search of more
            than 40 trials by `convergence` or `experienced` without a controller, 0.3 from 100
            trials on, else none.
        resume: continue the study in the folder, if there is one; False refuses such a folder.
        start_from: the folder of an earlier study, or a list of them. Their best points run first,
            three at most, and `experienced` knows them. From one study sampler `policy:elite`
            starts instead from a policy fitted to the trials there, whichever sampler proposed
            them, if the spaces overlap; controller `policy` starts from the weights in its
            `controller.json`. If both are used and only one of them finds something to start from,
            the other starts untrained.
        experience: the folder with summaries of earlier studies, from which `experienced` begins;
            when the study ends, its own is added. "off": nothing is read or written. By default
            what AUTOTUNE_EXPERIENCE says, else `~/.local/share/autotune/experience`; on a virtual
            clock off. A study that goes on knows what it knew when it began.
        stages: `auto`: where the trainer's `effects` say that searched parameters change only the
            seconds per sample, these are probed for a few seconds each before the search, which
            then has one plan for them; `off`: they are searched like all others. A resumed study
            stays as it began. See `algorithms.plans`.
        shared_beginnings: `auto`: where what acts from the first step on has few values and the
            schedules differ only later, all searched trials have one training seed, and a trial
            begins from another's checkpoint up to which both are the same training; its time counts
            from its first step. `off`: each trial trains from its first step on. A resumed study
            stays as it began. See `algorithms.beginnings`.
        recipe: where the experiment comes from, kept for `autotune resume`.
        recipe_arguments: the recipe's arguments by name, as text, kept with it.
        mirror: copy what `autotune resume --from-mlflow` needs to MLflow: the journal, the manifest
            and checkpoints. `tracking_uri` is then that of an MLflow server.
        mix_hardware: rank times on unequal hardware together; the fingerprints of these trials then
            say so. By default only trials on equal hardware are ranked together.
        progress: show the study on stderr while it runs: a live table on a terminal, one output
            that changes in a notebook, else lines of trials that start and end; False for nothing.
        watch: called after each event with the event and all trials, to display them.
        pool: where trials run, in place of a backend.

    Raises:
        UserError: an unknown argument or one outside its range, a folder with another study, a
            mirrored study that runs elsewhere, workers that the cluster can never have, or a target
            metric that the trainer never reports.
        StudyError: the study could not continue; it can be resumed.
        KeyboardInterrupt: Ctrl-C (or SIGTERM, or a closed terminal) ended the study: after the
            first its running trials are saved, after a second it ends at once. `out` goes on.
    """
    return _until_interrupted(experiment, options)


def _until_interrupted(experiment: Experiment, options: StudyOptions) -> StudyResult:
    """The study's result; an interrupt ends the script, as it would without a study.

    Raises:
        KeyboardInterrupt: the study was interrupted.
    """
    folder = options.folder(experiment.name) if isinstance(experiment, Experiment) else Path()
    try:
        result, manifest = carry_out(experiment, options)
        if result.ended == INTERRUPTED:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if (folder / JOURNAL).is_file():
            print(f"interrupted; go on with out={str(folder)!r}", file=sys.stderr, flush=True)
        raise
    if _is_shown(options) and (file := keeping.file_of(manifest)):
        print(keeping.written(file), file=sys.stderr, flush=True)
    return result


def carry_out(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None = None
) -> tuple[StudyResult, Manifest]:
    """Run the study: its result, and its manifest as it is now.

    `existing` is the manifest in the study folder, if the caller has read it.
    """
    if not isinstance(experiment, Experiment):
        raise UserError(f"run needs an Experiment but got {experiment!r:.80}")
    check_trainer(experiment)
    folder = options.folder(experiment.name)
    existing = existing or Manifest.existing(folder)
    kept = with_result(folder, existing)
    experiment = in_its_space(place.scaled(experiment, options, kept), kept)
    options = starts.switched(options, kept)
    choice, backend, parts = factory.decided(experiment, options, existing, kept)
    options = choice.options
    here = place.is_here(options) and is_watched()
    busy = f"warning: {said}" if here and options.search and (said := start_warning()) else ""
    current = resolved(
        experiment,
        options,
        start=warm_start.documents(parts.start),
        known=starts.entry(parts.known, options, existing),
        sampler_chosen_because=choice.sampler_because,
        backend_chosen_because=backend.because if backend is not None else None,
    )
    before = place.without_decided(existing, experiment.scaling)
    manifest = continued(current, before, folder, options.resume)
    check_mirrored(experiment.name, folder, options)
    checkpoints = place.checkpoints(experiment, manifest.study_id)
    named = place.as_named(str(options.backend), current.backend_chosen_because)
    again = partial(_confirmed, experiment, replace(options, out=folder, backend=named))
    with contextlib.ExitStack() as stack:
        if options.pool is not None:
            stack.enter_context(contextlib.closing(options.pool))
        journal = stack.enter_context(_opened(folder))  # a mistake is found before Ray starts
        if before is not None and manifest.study_id == before.study_id:
            _say_going_on(before, current, journal, options)
            if result := completed(journal, experiment.target, options, again):
                return result, manifest
        else:
            _say_folder(experiment.name, folder, options)
        in_here = backend is not None and place.runs_here(experiment, backend)
        display = stack.enter_context(shown(experiment, options, in_here))
        if backend is not None and backend.name == "ray":
            display.starts("starting Ray")
        pool, experiment, decided = place.place(experiment, options, backend)
        if not in_here:
            display.starts("starting workers")
        options = replace(options, pool=stack.enter_context(contextlib.closing(pool)))
        manifest = replace(manifest, scaling=manifest_scaling(experiment.scaling))
        looks = look if here else None
        settings = replace(
            parts.settings, experiment=experiment, checkpoints=checkpoints, look=looks
        )
        chosen = (*choice.notes(), *(backend.notes() if backend is not None else []))
        notes = [note for note in (*chosen, decided, busy) if note]
        parts = replace(parts, settings=settings)
        parts.known.write(folder)
        trials, reason = _work(options, parts, manifest, journal, notes, display)
    keeping.keep(options, manifest, folder, trials)
    return StudyResult(folder, experiment.target, trials, reason, again), manifest


def _is_shown(options: StudyOptions) -> bool:
    """Whether stderr shows the study."""
    return options.progress and (options.pool is None or options.pool.realtime)


def _say_folder(study: str, folder: Path, options: StudyOptions) -> None:
    """Say on stderr where a new study is."""
    if _is_shown(options):
        print(f"{study}: the study is in {folder}", file=sys.stderr, flush=True)


def _say_going_on(before: Manifest, now: Manifest, journal: Journal, options: StudyOptions) -> None:
    """Say on stderr how much of the search is there already, and that its trainer has changed."""
    if not options.search:
        return
    folder = journal.path.parent
    print(f"{folder}: {earlier.done(journal.entries, options.trials)}", file=sys.stderr)
    if said := earlier.changed(before, now, journal.entries):
        print(f"warning: {folder}: {said}", file=sys.stderr, flush=True)


def _confirmed(
    experiment: Experiment, options: StudyOptions, repeats: int, top: int
) -> StudyResult:
    """The study, whose search is over, with the `top` best run `repeats` times again."""
    more = replace(options, search=False, time_limit=None, seeds=(), resume=True)
    return _until_interrupted(experiment, replace(more, repeats=repeats, top=top))


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[Journal]:
    """The study's journal; where nothing is written into a new one, it is removed again."""
    is_new = not (folder / JOURNAL).is_file()
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    with Journal(folder) as journal:
        try:
            yield journal
        finally:
            unused = is_new and not (folder / EXPERIMENT_JSON).exists()
            if unused and journal.path.is_file() and not journal.path.stat().st_size:
                journal.path.unlink()
                with contextlib.suppress(OSError):  # another one has begun to use it
                    for place in missing:
                        place.rmdir()


def _work(
    options: StudyOptions,
    parts: Parts,
    manifest: Manifest,
    journal: Journal,
    notes: Sequence[str],
    display: Display,
) -> tuple[tuple[Trial, ...], str]:
    """Drive the study; all its trials, and why the driver left."""
    pool, settings, folder = options.pool, parts.settings, journal.path.parent
    assert pool is not None, "chosen by now"
    manifest.write(folder)
    watch = one_after_the_other(display.watch, options.watch)
    if notes and pool.realtime:
        watch = after_notes("\n".join(notes), watch)
    # The pool is closed before MLflow is waited for.
    with (
        _tracking(folder, options, pool),
        contextlib.closing(pool),
        metered(saving(settings, folder, watch), settings, folder, pool) as watch,
    ):
        state = StudyState(settings, folder, journal, pool, watch)
        try:
            reason = Loop(state, parts.sampler).run()
        finally:
            tracked = options.tracking_uri != "off"
            display.ends(f"ending workers{', writing MLflow runs' if tracked else ''}")
            warm_start.keep(folder, parts.sampler, tuple(state.trials.values()))
    return tuple(state.trials.values()), reason


def _tracking(
    folder: Path, options: StudyOptions, pool: Pool
) -> contextlib.AbstractContextManager[object]:
    """The MLflow view of the journal, made by a process of its own."""
    uri = options.tracking_uri
    if uri == "off" or (uri is None and not pool.realtime):
        return contextlib.nullcontext()
    from autotune.tracking.mirror import Mirror

    return Mirror(folder, uri, keeps_copy=options.mirror)
