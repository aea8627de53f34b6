"""The versions of what a study runs: of packages, of Python, of the user's own repository."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

_OURS, _DISTRIBUTION = "autotune", "time-to-target"  # the package and what is installed
_PACKAGES = (_OURS, "torch", "ray", "optuna", "mlflow", "numpy")
_CHECKOUT = Path(__file__).parents[2]  # where the package is not installed


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that matter to a study."""
    return {p: version_of(p) for p in _PACKAGES} | {"python": platform.python_version()}


def version_of(package: str) -> str | None:
    """The installed version of a package, None where it is not installed.

    That of a checkout of autotune that is not installed is the one in its `pyproject.toml`.
    """
    try:
        return metadata.version(_DISTRIBUTION if package == _OURS else package)
    except metadata.PackageNotFoundError:
        return _version_of_checkout(_CHECKOUT) if package == _OURS else None


def _version_of_checkout(folder: Path) -> str | None:
    import tomllib

    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        return str(project["version"]) if project["name"] == _DISTRIBUTION else None
    except (OSError, ValueError, KeyError, TypeError):  # another project's, or damaged
        return None


def commit() -> str | None:
    """The commit of the git repository of the current folder, None where it is none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 (the user's own git)
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
