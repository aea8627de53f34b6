"""The command line: `autotune run RECIPE`, and what one does with the study folder afterwards.

Exit codes: 0 done; 2 the user's mistake (one line on stderr); 3 done, but no trial reached the
target; 4 the study could not go on; 130 interrupted, resumable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from autotune.errors import StudyError, UserError, unknown

DONE, USER, UNREACHED, BROKEN, INTERRUPTED = 0, 2, 3, 4, 130


class _Parser(argparse.ArgumentParser):
    """Argparse, with one clear line for a mistake."""

    def error(self, message: str) -> NoReturn:
        choice = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if choice:
            message = unknown("command", choice[1], COMMANDS)
        raise UserError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        options = _parse(arguments)
        function: Callable[[argparse.Namespace], int] = options.function
        return function(options)
    except UserError as error:
        _say(f"autotune: {error}")
        return USER
    except StudyError as error:
        _say(f"autotune: the study could not go on: {error}")
        return BROKEN
    except KeyboardInterrupt:
        _say("autotune: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="autotune",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, (function, summary, flags) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for flag in flags:
            sub.add_argument(*flag[0].split(), **flag[1])
        sub.set_defaults(function=function)
    options, extra = parser.parse_known_args(arguments)
    if extra:
        flags = [word for flag in COMMANDS[options.command][2] for word in flag[0].split()]
        raise UserError(unknown("argument", extra[0], [f for f in flags if f.startswith("-")]))
    return options


# --- commands -------------------------------------------------------------------------------------


def run_command(options: argparse.Namespace) -> int:
    from autotune import recipes
    from autotune.study import auto_sampler

    experiment = recipes.load(options.recipe)
    out = options.out if options.out is not None else Path("studies") / experiment.name
    options.tracking_uri = _checked(options.tracking_uri)
    if options.mirror:
        _go_on(experiment.name, out, options.tracking_uri)
    sampler = options.sampler
    if sampler == "auto":
        earlier = options.start_from is not None and options.controller in (None, "none")
        sampler, why = auto_sampler(experiment, options.trials, out, earlier)
        options.note = f"sampler: {sampler}, as {why}"
    settings = {
        "trials": options.trials,
        "sampler": sampler,
        "pruner": options.pruner,
        "controller": options.controller,
        "seed": options.seed,
        "start_from": options.start_from,
        "recipe": recipes.absolute(options.recipe),
        "repeats": options.repeats,
        "mirror": options.mirror,
        "mix_hardware": options.mix_hardware,
    }
    return _study(experiment, out, options, settings)


def resume_command(options: argparse.Namespace) -> int:
    from autotune import recipes, record, replay

    if options.from_mlflow is not None:
        _fetch(options)
    held = record.load(options.folder)
    _check_recipe(options.folder, held)
    if options.trials is not None and options.trials < held["trials"]:
        raise UserError(f"--trials is a total and must be at least {held['trials']}")
    _as_held(options, held)
    exported = replay.source(held)
    if exported is not None:
        return _replay(
            replay.read(exported), options.folder, options.trials or held["trials"], options
        )
    settings = {**_settings(held), "trials": options.trials or held["trials"]}
    if _ended(options.folder, settings):
        return _shown(options)
    return _study(recipes.load(settings["recipe"]), options.folder, options, settings)


def _fetch(options: argparse.Namespace) -> None:
    """Make the study folder of the copy that MLflow keeps of the study DIR."""
    from autotune.trackers import mirror

    study, options.tracking_uri = str(options.folder), _checked(options.from_mlflow)
    mirror.check_keeps(options.tracking_uri)
    options.folder = options.out or Path("studies") / study
    if options.folder.exists():
        raise UserError(f"{options.folder} exists: name a new folder with --out")
    if fault := mirror.fetch(options.tracking_uri, study, options.folder):
        raise UserError(fault)


def _go_on(study: str, out: Path, uri: str | None) -> None:
    """Take up the study that MLflow keeps, where the folder has none yet."""
    from autotune.trackers import mirror

    mirror.check_keeps(uri)
    if uri is not None and not (out / "journal.jsonl").exists():
        mirror.fetch(uri, study, out)


def confirm_command(options: argparse.Namespace) -> int:
    from autotune import recipes, record, replay

    held, result = record.load(options.folder), _result(options.folder)
    _check_recipe(options.folder, held)
    if replay.source(held) is not None:
        more = f"autotune resume {options.folder} --trials N"
        raise UserError(f"{options.folder} is a replay, all of it repeats: for more, {more}")
    if options.repeats < 1:
        raise UserError(f"--repeats must be a whole number >= 1 but got {options.repeats}")
    if result.best is None:
        return _finish(result, options)
    _as_held(options, held)
    asked = {"repeats": options.repeats, "top": options.top, "search": False}
    settings = {**_settings(held), **asked}
    if _ended(options.folder, settings):
        return _shown(options)
    return _study(recipes.load(settings["recipe"]), options.folder, options, settings)


def status_command(options: argparse.Namespace) -> int:
    from autotune import display, record
    from autotune.trackers import journal

    result = _result(options.folder)
    held = record.load(options.folder)
    summary = {
        **display.summary(result, held["name"]),
        "trials_planned": held.get("trials"),
        "driver_alive": journal.held(options.folder),
    }
    if options.json:
        print(json.dumps(summary))
    else:
        display.print_status(summary, sys.stdout)
    return DONE


def best_command(options: argparse.Namespace) -> int:
    from autotune import display

    result = _result(options.folder)
    if result.best is None:
        if options.json:
            print("null")
        _say(f"{_not_reached(result)} yet")
        return UNREACHED
    best = display.best(result)
    if options.json:
        print(json.dumps(best))
    else:
        display.print_best(best, sys.stdout)
    return DONE


def export_command(options: argparse.Namespace) -> int:
    if options.to is None and options.optuna is None:
        raise UserError("export needs --to OUT for a trial, or --optuna URL for the whole study")
    if options.trial is not None and options.to is None:
        raise UserError("--trial is the trial to export --to OUT; --optuna takes them all")
    if options.optuna is not None:
        _export_study(options)
    return _export_trial(options) if options.to is not None else DONE


def _export_trial(options: argparse.Namespace) -> int:
    from autotune import export

    result = _result(options.folder)
    trial = export.choose(result, options.trial)
    if trial is None:
        _say(f"{_not_reached(result)}: name a trial with --trial N")
        return UNREACHED
    told = export.export(options.folder, trial, options.to)
    _say(f"wrote trial {trial.number} to {options.to}")
    if told["lineage_fault"]:
        _say(f"it is a fork, and a replay trains its last part only: {told['lineage_fault']}")
    if told["train"] is None:
        _say('its trainer has no name to be found by: set "train" in its trial.json')
    return DONE


def _export_study(options: argparse.Namespace) -> None:
    from autotune import recipes, record
    from autotune.samplers import optuna

    held, result = record.load(options.folder), _result(options.folder)
    if not held.get("recipe"):
        raise UserError(f"{options.folder} was started from Python: its search space is not known")
    space = recipes.load(held["recipe"]).space
    count = optuna.export(result.trials, space, result.target, options.optuna, held["name"])
    _say(f"wrote {count} trials as the Optuna study {held['name']!r}")


def replay_command(options: argparse.Namespace) -> int:
    from autotune import replay

    exported = replay.read(options.export)
    default = Path("studies") / f"{exported.study}-replay-{exported.trial.number}"
    return _replay(exported, options.out or default, options.repeats, options)


def compare_command(options: argparse.Namespace) -> int:
    from autotune.comparison import command

    command.run(options)
    return DONE


def report_command(options: argparse.Namespace) -> int:
    from autotune.trackers.journal import REPORT
    from dashboards.report import write_study

    file = options.to if options.to is not None else options.folder / REPORT
    write_study(options.folder, file)
    _say(f"wrote {file}")
    return DONE


def ui_command(options: argparse.Namespace) -> int:
    from autotune import ui

    return ui.serve(options.folder, _say)


def submit_command(options: argparse.Namespace) -> int:
    from autotune import jobs

    return jobs.submit(options, COMMANDS["run"][2])


def jobs_command(options: argparse.Namespace) -> int:
    from autotune import jobs

    return jobs.show(options)


def logs_command(options: argparse.Namespace) -> int:
    from autotune import jobs

    return jobs.logs(options)


def cancel_command(options: argparse.Namespace) -> int:
    from autotune import jobs

    return jobs.cancel(options)


def doctor_command(options: argparse.Namespace) -> int:
    from autotune import doctor

    checks = doctor.checks()
    if options.json:
        print(json.dumps([c.__dict__ for c in checks]))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.says}")
    return DONE if all(c.ok for c in checks) else BROKEN


# --- what they share ------------------------------------------------------------------------------


def _check_recipe(folder: Path, held: dict[str, Any]) -> None:
    if not held.get("recipe"):
        raise UserError(
            f"{folder} was started from Python: call autotune.run again with out={str(folder)!r}"
        )


def _as_held(options: argparse.Namespace, held: dict[str, Any]) -> None:
    """Take over what the study was begun with, where the command does not say."""
    options.tracking_uri = options.tracking_uri or held.get("tracking_uri")
    if getattr(options, "from_mlflow", None) is None:  # another machine has another cluster
        options.ray_address = options.ray_address or held.get("ray_address")
    options.tracking_uri = _checked(options.tracking_uri)


def _settings(held: dict[str, Any]) -> dict[str, Any]:
    """What `autotune.run` was told of the study; older records lack some of it."""
    from autotune import recipes

    later = {"repeats": 0, "top": 3, "racing": 0.0, "controller": None, "start_from": None}
    names = ("trials", "sampler", "pruner", "seed")
    told = {n: held[n] for n in names} | {n: held.get(n, other) for n, other in later.items()}
    place = {"recipe": recipes.moved(held["recipe"]), "mirror": held.get("mirrored", False)}
    return told | place | {"mix_hardware": held.get("mix_hardware", False)}


def _shown(options: argparse.Namespace) -> int:
    """Bring MLflow up to date and print the result of a study with nothing left to do."""
    from autotune.trackers.mirror import catch_up

    if options.tracking_uri != "off":
        catch_up(options.folder, options.tracking_uri, 60.0)
    return _finish(_result(options.folder), options)


def _study(
    experiment: Any, out: Path, options: argparse.Namespace, settings: dict[str, Any]
) -> int:
    return _finish(_run(experiment, out, options, settings), options)


def _replay(exported: Any, out: Path, repeats: int, options: argparse.Namespace) -> int:
    """Measure an exported trial anew in the study folder `out`, and print what came of it."""
    from autotune import replay

    settings = replay.settings(exported, repeats)
    result = _run(replay.experiment(exported), out, options, settings)
    told = replay.document(exported, result)
    if options.json:
        print(json.dumps(told, allow_nan=False))
    else:
        replay.print_document(told, sys.stdout)
    if result.ended == "interrupted":
        _say(f"interrupted; go on with: autotune resume {out}")
        return INTERRUPTED
    return DONE if told["reached"] else UNREACHED


def _noted(note: str, watch: Any) -> Any:
    """A watch that says `note` first, once the study has really begun."""
    left = [note]

    def noting(event: Any, trials: Any) -> None:
        if left:
            _say(left.pop())
        watch(event, trials)

    return noting


def _run(experiment: Any, out: Path, options: argparse.Namespace, settings: dict[str, Any]) -> Any:
    """The result of the study, whose progress is shown while it runs."""
    from autotune import display
    from autotune.study import run

    options.tracking_uri = _checked(options.tracking_uri)
    limit = duration(options.time_limit) if options.time_limit is not None else None
    note = getattr(options, "note", "")
    with _only_json(options.json), display.progress(experiment, settings["trials"]) as shown:
        watch = _noted(note, shown) if note else shown
        try:
            return run(
                experiment,
                **settings,
                time_limit=limit,
                out=out,
                tracking_uri=options.tracking_uri,
                ray_address=options.ray_address,
                watch=watch,
            )
        except (StudyError, KeyboardInterrupt):
            if (out / "journal.jsonl").is_file():
                _say(f"go on with: autotune resume {out}")
            raise


def _checked(uri: str | None) -> str | None:
    """The tracking URI, without a password: that goes into this process's environment."""
    from autotune.trackers import mirror

    if uri is None or uri == "off":
        return uri
    mirror.check_uri(uri)
    plain, credentials = mirror.taken_out(uri)
    if credentials:
        os.environ.update(credentials)
        _say(
            "the tracking URI's user and password are left out of it: what stands on a command "
            f"line can be read by everyone here; set {' and '.join(credentials)} instead"
        )
    return plain


def _finish(result: Any, options: argparse.Namespace) -> int:
    """Print what the study found, and say with the exit code how it ended."""
    from autotune import display, record

    held = record.load(result.folder)
    if options.json:
        print(json.dumps(display.document(result, held["name"])))
    else:
        display.print_result(result, held, sys.stdout)
    if result.ended == "interrupted":
        _say(f"interrupted; go on with: autotune resume {result.folder}")
        return INTERRUPTED
    return DONE if result.best is not None else UNREACHED


def _result(folder: Path) -> Any:
    from autotune import record, result

    return result.read(folder, record.target(folder))


def _not_reached(result: Any) -> str:
    return f"no trial has reached {result.target.metric} {result.target.value:g}"


def _ended(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether nothing is left to search or, without a search, to confirm."""
    from autotune.repeats import next_to_confirm

    found, search = _result(folder), settings.get("search", True)
    concerned = [t for t in found.trials if search or t.repeats is not None]
    if any(t.goes_on for t in concerned):
        return False
    repeats, top = settings["repeats"], settings["top"]
    left = next_to_confirm(found.trials, found.target, repeats, top) is not None
    return not left and (not search or len(found.searched) >= settings["trials"])


@contextlib.contextmanager
def _only_json(wanted: bool) -> Iterator[None]:
    """Send everything that anyone prints to stderr, so that stdout holds one JSON document."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def duration(text: str) -> float:
    """Seconds of `90`, `90s`, `10m`, `1h30m`.

    >>> duration("1h30m"), duration("90")
    (5400.0, 90.0)

    Raises:
        UserError: anything else, or nothing above zero.
    """
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    number = r"\d+(?:\.\d+)?"
    if re.fullmatch(number, text):
        seconds = float(text)
    elif re.fullmatch(f"(?:{number}[hms])+", text):
        seconds = sum(float(n) * units[u] for n, u in re.findall(f"({number})([hms])", text))
    else:
        raise UserError(f"--time-limit must be like 90s, 10m or 1h30m but got {text!r}")
    if seconds <= 0:
        raise UserError(f"--time-limit must be more than 0 seconds but got {text!r}")
    return seconds


def _count(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number but got {text!r}")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


_FOLDER = ("folder", {"metavar": "DIR", "type": Path, "help": "a study folder"})
_JSON = ("--json", {"action": "store_true", "help": "print one JSON document on stdout"})
_WHERE: list[tuple[str, dict[str, Any]]] = [
    ("--time-limit", {"metavar": "10m", "help": "end the study after this time"}),
    ("--tracking-uri", {"metavar": "URI", "help": "MLflow's store (default: in the study folder)"}),
    ("--ray-address", {"metavar": "ADDR", "help": "a Ray cluster (default: start Ray here)"}),
    _JSON,
]
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str, list[Any]]] = {
    "run": (
        run_command,
        "search the configuration that reaches a recipe's target soonest",
        [
            ("recipe", {"metavar": "RECIPE", "help": "module:function or file.py:function"}),
            ("--trials", {"metavar": "N", "type": _count, "default": 20, "help": "in all (20)"}),
            ("--sampler", {"metavar": "NAME", "default": "auto", "help": "auto (by trials and "
             "baseline), convergence, tpe, widening, policy (or policy:actor, policy:reinforce, "
             "policy:ppo), random, qmc, gp, cmaes, nsga2, or an Optuna sampler's dotted path with "
             "keyword arguments"}),
            ("--from", {"metavar": "DIR", "type": Path, "dest": "start_from",
                        "help": "a study whose policy to begin with (sampler policy, "
                        "controller policy, or both)"}),
            ("--pruner", {"metavar": "NAME", "default": "convergence",
                          "help": "convergence (slower_than_best and forecast), "
                          "slower_than_best, forecast, asha, hyperband, bottom_at_same_time, "
                          "none, or module:function"}),
            ("--controller", {"metavar": "NAME", "help": "regulator, policy, either with keyword "
                              "arguments, pbt, pb2, module:function or file.py:function (none)"}),
            ("--out", {"metavar": "DIR", "type": Path, "help": "the study folder (studies/NAME)"}),
            ("--seed", {"metavar": "N", "type": _count, "default": 0, "help": "of the study (0)"}),
            ("--repeats", {"metavar": "N", "type": _count, "default": 0,
                           "help": "confirm the best 3 and the baseline on N fresh seeds (0)"}),
            ("--mirror", {"action": "store_true", "help": "keep what resume needs in MLflow, too, "
                          "and go on with the study that MLflow has"}),
            ("--mix-hardware", {"action": "store_true", "help": "rank times on unequal hardware "
                                "together (default: only like with like)"}),
            *_WHERE,
        ],
    ),
    "resume": (
        resume_command,
        "go on with a study, or bring its MLflow runs up to date",
        [
            ("folder", {"metavar": "DIR", "type": Path, "help": "a study folder; with "
                        "--from-mlflow the study's name"}),
            ("--trials", {"metavar": "N", "type": _count, "help": "a new total"}),
            ("--from-mlflow", {"metavar": "URI", "help": "the MLflow server that keeps the study "
                               "(run --mirror); it is fetched from there first"}),
            ("--out", {"metavar": "DIR", "type": Path,
                       "help": "the folder to fetch it into (studies/NAME)"}),
            *_WHERE,
        ],
    ),
    "status": (status_command, "how a study stands", [_FOLDER, _JSON]),
    "best": (best_command, "the fastest trial's configuration", [_FOLDER, _JSON]),
    "confirm": (
        confirm_command,
        "run the fastest configurations and the baseline again on fresh seeds, each alone",
        [
            _FOLDER,
            ("--repeats", {"metavar": "N", "type": _count, "default": 5,
                           "help": "of each, in all (5)"}),
            ("--top", {"metavar": "K", "type": _count, "default": 3,
                       "help": "of the fastest configurations (3)"}),
            *_WHERE,
        ],
    ),
    "export": (
        export_command,
        "write a trial as a folder that trains alone, or a study into an Optuna storage",
        [
            _FOLDER,
            ("--to", {"metavar": "OUT", "type": Path, "help": "a new folder, for one trial"}),
            ("--trial", {"metavar": "N", "type": _count, "help": "which one (the best)"}),
            ("--optuna", {"metavar": "URL", "help": "sqlite:///FILE.db, for optuna-dashboard"}),
        ],
    ),
    "replay": (
        replay_command,
        "train an exported trial again: compare its losses, measure its time anew",
        [
            ("export", {"metavar": "OUT", "type": Path, "help": "what export --to OUT wrote"}),
            ("--repeats", {"metavar": "N", "type": _count, "default": 3, "help": "in all (3)"}),
            ("--out", {"metavar": "DIR", "type": Path,
                       "help": "the study folder (studies/NAME-replay-TRIAL)"}),
            *_WHERE,
        ],
    ),
    "compare": (
        compare_command,
        "compare times to the target: studies, trials, replays, published and MLflow runs",
        [
            ("sources", {"metavar": "SOURCE", "nargs": "+",
                         "help": "DIR, DIR#TRIAL, FILE.tsv or mlflow:EXPERIMENT/RUN"}),
            ("--baseline", {"metavar": "SOURCE", "help": "a source, or trial:N of the first study "
                            "(the first source's own baseline)"}),
            ("--allow", {"metavar": "TERM", "action": "append", "default": [], "help": "compare "
                         "although it differs: hardware, workers, sharing, clock or target"}),
            ("--target", {"metavar": "METRIC=VALUE", "help": "of published runs, and MLflow runs "
                          "of others (top5=93)"}),
            ("--report", {"metavar": "FILE.html", "type": Path, "help": "write the report"}),
            ("--csv", {"metavar": "FILE", "type": Path, "help": "write the table"}),
            ("--tracking-uri", {"metavar": "URI", "help": "MLflow's store (MLFLOW_TRACKING_URI)"}),
            _JSON,
        ],
    ),
    "report": (
        report_command,
        "write a study's report as one HTML file",
        [_FOLDER, ("--to", {"metavar": "FILE", "type": Path, "help": "(DIR/report.html)"})],
    ),
    "ui": (ui_command, "open MLflow's UI on a study, on loopback", [_FOLDER]),
    "doctor": (doctor_command, "check this machine: torch, Ray, MLflow, cores, GPUs", [_JSON]),
}  # fmt: skip
_ADDRESS = ("--address", {"metavar": "URL", "help": "the dashboard of a Ray cluster, like "
                          "http://HEAD:8265 (RAY_API_SERVER_ADDRESS, RAY_ADDRESS)"})  # fmt: skip
_JOB = ("job", {"metavar": "ID", "help": "a job's id, as `autotune jobs` shows it"})
_FOLLOW = ("--follow", {"action": "store_true", "help": "show what it writes until it ends"})
_DRIVER: list[tuple[str, dict[str, Any]]] = [
    ("--driver-cpus", {"metavar": "N", "type": float, "default": 0.0,
                       "help": "CPUs reserved for the driver (0: on the head node)"}),
    ("--driver-resources", {"metavar": "NAME=N,...", "help": "custom resources for the driver"}),
    ("--pip", {"metavar": "FILE", "type": Path, "help": "requirements that the cluster installs"}),
    ("--env", {"metavar": "NAME=VALUE", "action": "append", "default": [],
               "help": "a variable of driver and workers (no secrets); may be repeated"}),
]  # fmt: skip
_ELSEWHERE = ("--ray-address", "--json")  # what of `run` a job has no use for
COMMANDS |= {
    "submit": (
        submit_command,
        "run a study as a job of a Ray cluster",
        [
            *(flag for flag in COMMANDS["run"][2] if flag[0] not in _ELSEWHERE),
            *(_ADDRESS, _FOLLOW, *_DRIVER, _JSON),
        ],
    ),
    "jobs": (jobs_command, "the studies submitted to a Ray cluster", [_ADDRESS, _JSON]),
    "logs": (logs_command, "what a job has written", [_JOB, _FOLLOW, _ADDRESS]),
    "cancel": (
        cancel_command,
        "end a job: its driver checkpoints what runs, and the study can be resumed",
        [_JOB, _ADDRESS],
    ),
}


if __name__ == "__main__":
    sys.exit(main())
