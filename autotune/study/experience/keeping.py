"""The summary of a study in the store: added when the study has ended, and found again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import UserError, raised_by
from autotune.study.experience import document, finding, known, store, summary
from autotune.study.experience.summary import UnfitError
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.trial import Trial


def keep(
    options: StudyOptions, manifest: Manifest, folder: Path, trials: Sequence[Trial]
) -> Path | None:
    """Write the study's summary into the store; returns its file, None where there is none.

    Nothing is written where experience is off, on a virtual clock unless a folder was named, of a
    replay, and of a study with too few trials. What goes wrong is a warning of one line: the
    study's result stands.
    """
    if options.seeds or (finding.on_virtual_clock(options) and options.experience is None):
        return None
    place = store.folder_of(options.experience)
    if place is None:
        return None
    try:
        return store.write(place, summary.of_study(manifest, folder, trials))
    except UnfitError:
        return None
    except OSError as error:
        known.warn(f"experience: {place} cannot be written: {error.strerror or error}")
    except UserError as error:
        known.warn(f"experience: no summary of this study is kept: {error}")
    except Exception as error:  # whatever it is, the study is done
        known.warn(f"experience: {raised_by('summary', error)}")
    return None


def file_of(manifest: Manifest) -> Path | None:
    """The file in the store with the study's summary; None where there is none."""
    place = store.folder_of(manifest.options.experience)
    if place is None:
        return None
    file = place / document.file_name(manifest.name, manifest.study_id)
    return file if os.path.isfile(file) else None


def written(file: object) -> str:
    """What is said of the study's summary, in words."""
    return f"experience: the summary of this study is in {file}"
