"""The command line: `autotune run RECIPE`, and what one does with the study folder afterwards.

Exit codes: 0 done; 2 the user's mistake (one line on stderr); 3 done, but no trial reached the
target; 4 the study could not go on; 130 interrupted, resumable.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from autotune.cli import arguments as flags
from autotune.cli.console import (
    BROKEN,
    DONE,
    INTERRUPTED,
    UNREACHED,
    USER,
    not_reached,
    result_in,
    say,
    tell,
)
from autotune.errors import StudyError, UserError, unknown


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
        say(f"autotune: {error}")
        return USER
    except StudyError as error:
        say(f"autotune: the study could not go on: {error}")
        return BROKEN
    except KeyboardInterrupt:
        say("autotune: interrupted")
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
    for name, (function, summary, rows) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for flag in rows:
            sub.add_argument(*flag[0].split(), **flag[1])
        sub.set_defaults(function=function)
    options, extra = parser.parse_known_args(arguments)
    if extra:
        words = [word for flag in COMMANDS[options.command][2] for word in flag[0].split()]
        raise UserError(unknown("argument", extra[0], [w for w in words if w.startswith("-")]))
    return options


# --- commands -------------------------------------------------------------------------------------


def run_command(options: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.run(options)


def resume_command(options: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.resume(options)


def confirm_command(options: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.confirm(options)


def replay_command(options: argparse.Namespace) -> int:
    from autotune.cli import study_commands

    return study_commands.replay(options)


def status_command(options: argparse.Namespace) -> int:
    from autotune.cli import text
    from autotune.evaluation import summary as documents
    from autotune.storage import journal
    from autotune.study import manifest

    result = result_in(options.folder)
    held = manifest.load(options.folder)
    summary = {
        **documents.summary(result, held["name"]),
        "trials_planned": held.get("trials"),
        "sampler": held.get("sampler"),
        "sampler_chosen_because": held.get("sampler_chosen_because"),
        "confirmations": documents.confirmations(result, held),
        "driver_alive": journal.held(options.folder),
    }
    tell(summary, options.json, text.print_status)
    return DONE


def best_command(options: argparse.Namespace) -> int:
    from autotune.cli import text
    from autotune.evaluation import summary as documents

    result = result_in(options.folder)
    if result.best is None:
        if options.json:
            print("null")
        say(f"{not_reached(result)} yet")
        return UNREACHED
    tell(documents.best(result), options.json, text.print_best)
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
    from autotune.evaluation.export import export

    result = result_in(options.folder)
    trial = export.choose(result, options.trial)
    if trial is None:
        say(f"{not_reached(result)}: name a trial with --trial N")
        return UNREACHED
    content = export.export(result, trial, options.to)
    say(f"wrote trial {trial.number} to {options.to}")
    if content["lineage_fault"]:
        say(f"it is a fork, and a replay trains its last part only: {content['lineage_fault']}")
    if content["train"] is None:
        say('its trainer has no name to be found by: set "train" in its trial.json')
    return DONE


def _export_study(options: argparse.Namespace) -> None:
    from autotune.evaluation.export import optuna_study
    from autotune.study import manifest, recipes

    held, result = manifest.load(options.folder), result_in(options.folder)
    if not held.get("recipe"):
        raise UserError(f"{options.folder} was started from Python: its search space is not known")
    space = recipes.load(held["recipe"]).space
    count = optuna_study.export(result.trials, space, result.target, options.optuna, held["name"])
    say(f"wrote {count} trials as the Optuna study {held['name']!r}")


def compare_command(options: argparse.Namespace) -> int:
    from autotune.cli import compare

    compare.run(options)
    return DONE


def report_command(options: argparse.Namespace) -> int:
    from autotune.storage.journal import REPORT
    from dashboards.report import write_study

    file = options.to if options.to is not None else options.folder / REPORT
    write_study(options.folder, file)
    say(f"wrote {file}")
    return DONE


def ui_command(options: argparse.Namespace) -> int:
    from autotune.cli import mlflow_ui

    return mlflow_ui.serve(options.folder, say)


def submit_command(options: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.submit(options, flags.RUN)


def jobs_command(options: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.show(options)


def logs_command(options: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.logs(options)


def cancel_command(options: argparse.Namespace) -> int:
    from autotune.cli.jobs import commands as jobs

    return jobs.cancel(options)


def doctor_command(options: argparse.Namespace) -> int:
    from autotune.cli import doctor

    checks = doctor.checks()
    if options.json:
        print(json.dumps([c.__dict__ for c in checks]))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.says}")
    return DONE if all(c.ok for c in checks) else BROKEN


Command = tuple[Callable[[argparse.Namespace], int], str, list[flags.Flag]]
COMMANDS: dict[str, Command] = {
    "run": (
        run_command,
        "search the configuration that reaches a recipe's target soonest",
        flags.RUN,
    ),
    "resume": (
        resume_command,
        "go on with a study, or bring its MLflow runs up to date",
        flags.RESUME,
    ),
    "status": (status_command, "how a study stands", [flags.FOLDER, flags.JSON]),
    "best": (best_command, "the fastest trial's configuration", [flags.FOLDER, flags.JSON]),
    "confirm": (
        confirm_command,
        "run the fastest configurations and the baseline again on fresh seeds, each alone",
        flags.CONFIRM,
    ),
    "export": (
        export_command,
        "write a trial as a folder that trains alone, or a study into an Optuna storage",
        flags.EXPORT,
    ),
    "replay": (
        replay_command,
        "train an exported trial again: compare its losses, measure its time anew",
        flags.REPLAY,
    ),
    "compare": (
        compare_command,
        "compare times to the target: studies, trials, replays, published and MLflow runs",
        flags.COMPARE,
    ),
    "report": (report_command, "write a study's report as one HTML file", flags.REPORT),
    "ui": (ui_command, "open MLflow's UI on a study, on loopback", [flags.FOLDER]),
    "doctor": (doctor_command, "check this machine: torch, Ray, MLflow, cores, GPUs", [flags.JSON]),
    "submit": (submit_command, "run a study as a job of a Ray cluster", flags.SUBMIT),
    "jobs": (jobs_command, "the studies submitted to a Ray cluster", [flags.ADDRESS, flags.JSON]),
    "logs": (logs_command, "what a job has written", flags.LOGS),
    "cancel": (
        cancel_command,
        "end a job: its driver checkpoints what runs, and the study can be resumed",
        flags.CANCEL,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
