"""Where the trials of a study run and save: workers, backend, pool, folder of checkpoints."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.backends.protocol import Pool
from autotune.errors import UserError
from autotune.storage import checkpoint_files
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.trial.scaling import Scaling

if TYPE_CHECKING:
    from autotune.backends.local.here import ThisProcess
    from autotune.backends.local.pool import LocalPool
    from autotune.backends.ray.pool import RayPool

_OUTPUT = "output"  # in the study folder: what trainers print, if processes of this machine do
_LEFT_OPEN = ("cpus_per_worker", "gpus_per_worker")  # of a scaling, to be decided by the cluster


def scaled(experiment: Experiment, options: StudyOptions, existing: Manifest | None) -> Experiment:
    """The experiment with the workers, cores and GPUs that the options name, if they do.

    What neither says is what the study in the folder has, whose manifest is `existing` if it has
    any result, or is decided once the cluster is known.

    Raises:
        UserError: the options do not go with the experiment's scaling.
    """
    named = {
        "num_workers": options.workers,
        "cpus_per_worker": options.cpus_per_worker,
        "gpus_per_worker": options.gpus_per_worker,
        "max_concurrent_trials": options.max_concurrent_trials,
    }
    try:
        scaling = replace(experiment.scaling, **{k: v for k, v in named.items() if v is not None})  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(str(error)) from None
    if existing is not None:
        scaling = replace(scaling, **{name: existing.scaling[name] for name in _open(scaling)})
    return replace(experiment, scaling=scaling)


def without_decided(existing: Manifest | None, scaling: Scaling) -> Manifest | None:
    """The study's manifest without the cores and GPUs that are decided again.

    What another cluster decides does not make another study of one that has no result.
    """
    if existing is None:
        return None
    again = {name: getattr(scaling.decided, name) for name in _open(scaling)}
    return replace(existing, scaling={**existing.scaling, **again})


def _open(scaling: Scaling) -> list[str]:
    return [name for name in _LEFT_OPEN if getattr(scaling, name) is None]


# --- the backend ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """A backend by its name, and why it was chosen, where nobody has named it.

    `is_new` is whether it has been chosen now, and not when the study began.
    """

    name: str
    because: str | None = None
    is_new: bool = False

    def notes(self) -> list[str]:
        """The choice in words."""
        if self.because is None or not self.is_new:
            return []
        other = "--backend ray for Ray" if self.name == "local" else "--local for none"
        return [f"backend: {self.name}, as {self.because} ({other})"]


def backend_for(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None = None
) -> Backend:
    """The backend of a study whose workers are known, that has no pool of its own.

    The one that was named, else that of the study in the folder, unless a cluster's address is
    given now. For a new study: local where trials of one rank train on this machine's CPUs, which
    needs no cluster and starts sooner (`benchmarks/RESULTS.md`, backends); else Ray.
    """
    named = str(options.backend)
    if existing is not None and named == "auto":
        before = str(existing.options.backend)
        given_now = before == "local" and options.ray_address is not None
        if before != "auto" and not given_now:
            return Backend(before, existing.backend_chosen_because)
    if named != "auto":
        return Backend(named)
    why = _needs_ray(experiment.scaling, options.ray_address)
    if why:
        return Backend("ray", why, is_new=True)
    return Backend("local", "trials of one rank on CPUs need no cluster", is_new=True)


def _needs_ray(scaling: Scaling, address: str | None) -> str:
    """Why trials are to run on Ray, or an empty string."""
    from autotune.backends.local import machine

    if address is not None:
        return "a Ray cluster is given"
    if _connected() is not None:
        return "this process is connected to Ray"
    if scaling.num_workers > 1:
        return f"trials have {scaling.num_workers} ranks"
    if scaling.gpus:
        return "GPUs are shared out"
    if scaling.gpus_per_worker is None and machine.gpus():
        return "this machine's GPUs are shared out"
    return ""


def is_here(options: StudyOptions) -> bool:
    """Whether all trials run on this machine, as far as is known before there is a pool."""
    if options.pool is not None or options.ray_address is not None:
        return False
    ray = _connected()
    if ray is None or options.backend == "local":
        return True
    alive = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return alive <= {ray.util.get_node_ip_address()}


def _connected() -> Any:
    """The module `ray`, if this process is connected to Ray; else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def as_named(backend: str, because: str | None) -> str:
    """The option for a study that goes on: `auto` where nobody had named its backend."""
    return backend if because is None else "auto"


# --- the pool -------------------------------------------------------------------------------------


def place(
    experiment: Experiment, options: StudyOptions, backend: Backend | None
) -> tuple[Pool, Experiment, str]:
    """Where the trials run, the experiment as it is there, and what was decided, in one line.

    `backend` is None where the options have a pool.

    Raises:
        UserError: no such cluster, or one on which a trial can never fit.
        StudyError: Ray does not start.
    """
    scaling = experiment.scaling
    if options.pool is not None:
        return options.pool, replace(experiment, scaling=scaling.decided), ""
    assert backend is not None, "chosen by now"
    pool = made_pool(experiment, options, backend)
    here = {name: getattr(pool.scaling, name) for name in _LEFT_OPEN}
    return pool, replace(experiment, scaling=replace(scaling, **here)), pool.decided


def made_pool(
    experiment: Experiment, options: StudyOptions, backend: Backend
) -> RayPool | LocalPool | ThisProcess:
    """The backend's worker groups, no more of them than there are trials."""
    scaling, trials = experiment.scaling, options.trials if options.search else 1
    most = min(trials, scaling.max_concurrent_trials or trials)
    bounded = replace(scaling, max_concurrent_trials=most)
    patience = experiment.failure.hang_timeout
    if backend.name == "ray":
        from autotune.backends.ray.pool import RayPool

        return RayPool(
            experiment.train, bounded, hang_timeout=patience, address=options.ray_address
        )
    if runs_here(experiment, backend):
        from autotune.backends.local.here import ThisProcess

        return ThisProcess(experiment.train, bounded)
    from autotune.backends.local.pool import LocalPool

    output = options.folder(experiment.name).absolute() / _OUTPUT
    return LocalPool(experiment.train, bounded, hang_timeout=patience, output=output)


def runs_here(experiment: Experiment, backend: Backend) -> bool:
    """Whether trials run in this very process: where `local` was named for one rank at a time.

    Where nobody has named it, they have a process of their own, which may hang or crash alone.
    """
    one = experiment.scaling.num_workers == experiment.scaling.max_concurrent_trials == 1
    return one and backend == Backend("local")


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoints(experiment: Experiment, study_id: str) -> str:
    """The folder or URL of this study's checkpoints; empty for the study folder."""
    given = experiment.failure.checkpoint_folder
    if given is None:
        return ""
    root = checkpoint_files.root_in(given, experiment.name, study_id)
    try:
        checkpoint_files.reach(root)
    except (ValueError, ImportError, OSError) as error:
        raise UserError(f"checkpoint_folder {given!r} cannot be used: {error}") from None
    return root
