"""The working directory as one archive for a cluster: what git does not ignore, within a limit.

The same files give the same archive, byte for byte, so that Ray sends it once.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from autotune.errors import UserError
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON

LIMIT_BYTES = 100 * 2**20  # what the dashboard of a Ray head takes in one request
_PACKS_BYTES = 10 * LIMIT_BYTES  # more than that is not even tried to be compressed
_NEVER = (".git", "__pycache__")
_RULES = (".gitignore", ".rayignore")
_NAMED = 5


@dataclass(frozen=True)
class Rules:
    """The ignore file of a folder; its patterns are relative to the folder."""

    folder: Path
    spec: GitIgnoreSpec

    def ignored(self, path: Path, is_folder: bool) -> bool | None:
        """What the file says of the path, or None if it says nothing."""
        name = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(f"{name}/" if is_folder else name).include


def files(root: Path) -> list[Path]:
    """The files below `root` that are shipped, in a fixed order.

    Left out: what a `.gitignore` (of `root`, below it, or above it up to the repository's top) or a
    `.rayignore` names, `.git`, caches of bytecode, study folders, and links to folders.
    """
    root = root.resolve()
    return list(_walk(root, [rule for folder in _above(root) for rule in _rules(folder)]))


def pack(root: Path, to: Path) -> Path:
    """Write what is shipped of `root` as the archive `to`.

    Raises:
        UserError: it is empty or larger than a cluster takes; the largest files are named.
    """
    shipped = files(root)
    if not shipped:
        raise UserError(f"{root} has no file that is not ignored: there is nothing to submit")
    sizes = {path: path.stat().st_size for path in shipped}
    if sum(sizes.values()) > _PACKS_BYTES:
        raise _too_large(root, sum(sizes.values()), sizes)
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in shipped:
            entry = zipfile.ZipInfo(path.relative_to(root.resolve()).as_posix())
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (path.stat().st_mode & 0o777) << 16
            archive.writestr(entry, path.read_bytes())
            if archive.start_dir > LIMIT_BYTES:
                raise _too_large(root, sum(sizes.values()), sizes)
    return to


def _walk(folder: Path, above: Sequence[Rules]) -> Iterator[Path]:
    names = os.listdir(folder)
    if JOURNAL in names and EXPERIMENT_JSON in names:
        return
    rules = [*above, *_rules(folder)]
    for name in sorted(names):
        path = folder / name
        is_folder = path.is_dir()
        if name in _NEVER or (is_folder and path.is_symlink()):
            continue
        if _ignored(path, is_folder, rules):
            continue
        if is_folder:
            yield from _walk(path, rules)
        elif path.is_file():
            yield path


def _ignored(path: Path, is_folder: bool, rules: Sequence[Rules]) -> bool:
    """The deepest file that says something decides, as in git."""
    for rule in reversed(rules):
        ignored = rule.ignored(path, is_folder)
        if ignored is not None:
            return ignored
    return False


def _above(root: Path) -> list[Path]:
    """The folders above `root` in its repository, topmost first."""
    for number, folder in enumerate([root, *root.parents]):
        if (folder / ".git").exists():
            return [*reversed(root.parents[:number])]
    return []


def _rules(folder: Path) -> list[Rules]:
    return [
        Rules(folder, GitIgnoreSpec.from_lines(file.read_text(errors="replace").splitlines()))
        for file in (folder / name for name in _RULES)
        if file.is_file()
    ]


def _too_large(root: Path, total: int, sizes: dict[Path, int]) -> UserError:
    large = [path for path in sizes if sizes[path] > total / 100] or list(sizes)
    largest = sorted(large, key=lambda path: (-sizes[path], path))[:_NAMED]
    named = ", ".join(f"{p.relative_to(root.resolve())} ({_mib(sizes[p])})" for p in largest)
    return UserError(
        f"the working directory {root} has {_mib(total)} that are not ignored, and a cluster takes "
        f"{_mib(LIMIT_BYTES)} packed: name in .gitignore or .rayignore what the job does not need, "
        f"and put data on shared storage; the largest: {named}"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.3g} MiB" if size < 2**20 * 1000 else f"{size / 2**30:.3g} GiB"
