"""The working directory as one archive for a cluster: what git does not ignore, within a limit.

The same files give the same archive, byte for byte, so that Ray sends it once. What may hold a
secret, and links out of the directory, stay here; `notes` says so.

Ray's own packaging of a directory is not used: it follows links, sends `.env` and key files, fails
on a name that is not UTF-8, does not compress, and reads no ignore file above the directory.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pathspec import GitIgnoreSpec

from autotune.errors import UserError
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON

LIMIT_BYTES = 100 * 2**20  # what the dashboard of a Ray head takes in one request
_PACKS_BYTES = 10 * LIMIT_BYTES  # more than that is not even tried to be compressed
_NEVER = (".git", "__pycache__")
_GIT, _RAY = ".gitignore", ".rayignore"
_NAMED = 5
_SECRETS = (  # names in lower case of files that hold credentials
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".htpasswd"),
    *(".pypirc", ".npmrc", ".git-credentials", ".vault-token", ".databrickscfg", ".s3cfg", ".boto"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "*.pem"),
    *("*.key", "*.ppk", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "kubeconfig"),
    *("credentials", "credentials.json", "application_default_credentials.json", "kaggle.json"),
    *("secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml", "auth_token"),
)
_SECRET_FOLDERS = (".ssh", ".gnupg", ".aws", ".azure", ".gcloud", ".kube", ".docker")
_TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", "example.env")
_KEY_BYTES = 64  # of a file's beginning, in which a private key says what it is

_SECRET = f"may hold a secret; to send it, write its name after ! into {_RAY}"
_LINK = "a link to what is not sent, or to a folder"
_NAME = "its name is not UTF-8"


@dataclass(frozen=True)
class Rules:
    """The ignore file of a folder; its patterns are relative to the folder."""

    folder: Path
    spec: GitIgnoreSpec
    of_ray: bool

    def ignored(self, path: Path, is_folder: bool) -> bool | None:
        """What the file says of the path, or None if it says nothing."""
        name = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(f"{name}/" if is_folder else name).include


@dataclass(frozen=True)
class Selection:
    """What is sent of the folder `root`, in a fixed order; `left_out` has paths and reasons.

    What is ignored is in neither.
    """

    root: Path
    files: tuple[Path, ...]
    left_out: tuple[tuple[Path, str], ...]


def select(root: Path) -> Selection:
    """Choose what is sent of the folder `root`.

    Ignored is what a `.gitignore` (of `root`, below it, or above it up to the repository's top) or
    a `.rayignore` names, `.git`, caches of bytecode, and study folders. Left out with a reason are
    files that may hold a secret, by their names or as private keys, unless a `.rayignore` names
    them after `!`; names that are not UTF-8; links to folders, and to files that are not sent
    themselves.

    Raises:
        UserError: a folder or file cannot be read.
    """
    root = root.resolve()
    try:
        found = list(_walk(root, [rule for folder in _above(root) for rule in _rules(folder)]))
    except OSError as error:
        raise _unreadable(root, error) from None
    plain = {path for path, reason in found if not reason}
    files, left = [], []
    for path, reason in found:
        if not reason or (reason == _LINK and Path(os.path.realpath(path)) in plain):
            files.append(path)
        else:
            left.append((path, reason))
    return Selection(root, tuple(files), tuple(left))


def notes(selection: Selection) -> list[str]:
    """What is left out, a line for each reason."""
    lines = []
    for reason in dict.fromkeys(reason for _, reason in selection.left_out):
        names = [
            repr(path.relative_to(selection.root).as_posix())
            for path, why in selection.left_out
            if why == reason
        ]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"not sent: {', '.join(names[:_NAMED])}{more} ({reason})")
    return lines


def pack(selection: Selection, to: Path) -> Path:
    """Write the selected files as the archive `to`.

    Raises:
        UserError: there are none, they cannot be read, or are larger than a cluster takes; the
            largest are named then.
    """
    root = selection.root
    if not selection.files:
        raise UserError(f"{root} has no file that is not ignored: there is nothing to submit")
    try:
        sizes = {path: path.stat().st_size for path in selection.files}
        if sum(sizes.values()) > _PACKS_BYTES:
            raise _too_large(root, sum(sizes.values()), sizes)
        with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in selection.files:
                entry = zipfile.ZipInfo(path.relative_to(root).as_posix())
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (path.stat().st_mode & 0o777) << 16
                archive.writestr(entry, path.read_bytes())
                if archive.start_dir > LIMIT_BYTES:
                    raise _too_large(root, sum(sizes.values()), sizes)
    except OSError as error:
        raise _unreadable(root, error) from None
    return to


def _walk(folder: Path, above: Sequence[Rules]) -> Iterator[tuple[Path, str]]:
    """What is not ignored, each path with why it is not sent: empty for what is."""
    names = os.listdir(folder)
    if JOURNAL in names and EXPERIMENT_JSON in names:
        return
    rules = [*above, *_rules(folder)]
    for name in sorted(names):
        path = folder / name
        is_link = path.is_symlink()
        is_folder = path.is_dir() and not is_link
        if name in _NEVER or _said(path, is_folder, rules):
            continue
        if reason := _reason(path, is_link, is_folder, rules):
            yield path, reason
        elif is_folder:
            yield from _walk(path, rules)
        elif path.is_file():
            yield path, ""


def _reason(path: Path, is_link: bool, is_folder: bool, rules: Sequence[Rules]) -> str:
    """Why the path is not sent, or empty; a link's target is looked at later."""
    if not is_utf8(path.name):
        return _NAME
    asked_for = _said(path, is_folder, [rule for rule in rules if rule.of_ray]) is False
    if not asked_for and (_names_secret(path.name, is_folder) or (not is_link and _is_key(path))):
        return _SECRET
    return _LINK if is_link else ""


def is_utf8(text: str) -> bool:
    """Whether a text that the system gave is UTF-8; bytes that are not are lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names_secret(name: str, is_folder: bool) -> bool:
    """Whether files, or folders, of this name mostly hold credentials.

    >>> [_names_secret(name, False) for name in (".env.local", ".env.example", "id_rsa.pub")]
    [True, False, False]
    >>> _names_secret(".ssh", True), _names_secret("credentials", True)
    (True, False)
    """
    lower = name.lower()
    if is_folder:
        return lower in _SECRET_FOLDERS
    return lower not in _TEMPLATES and any(fnmatchcase(lower, secret) for secret in _SECRETS)


def _is_key(path: Path) -> bool:
    """Whether a file begins as a private key does, whatever its name."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        begin = file.read(_KEY_BYTES).lstrip()
    is_pem = begin.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in begin
    return is_pem or begin.startswith(b"PuTTY-User-Key-File")


def _said(path: Path, is_folder: bool, rules: Sequence[Rules]) -> bool | None:
    """Whether the path is ignored: the deepest file that says something decides, as in git."""
    for rule in reversed(rules):
        ignored = rule.ignored(path, is_folder)
        if ignored is not None:
            return ignored
    return None


def _above(root: Path) -> list[Path]:
    """The folders above `root` in its repository, topmost first."""
    for number, folder in enumerate([root, *root.parents]):
        if (folder / ".git").exists():
            return [*reversed(root.parents[:number])]
    return []


def _rules(folder: Path) -> list[Rules]:
    return [
        Rules(folder, _spec(file.read_text("utf-8-sig", "replace")), file.name == _RAY)
        for file in (folder / name for name in (_GIT, _RAY))
        if file.is_file()
    ]


def _spec(text: str) -> GitIgnoreSpec:
    """The patterns; one that is none, like a lone `!`, matches nothing, as in git."""
    return GitIgnoreSpec.from_lines(line for line in text.split("\n") if _is_pattern(line))


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _unreadable(root: Path, error: OSError) -> UserError:
    where = f": {error.filename!r}" if error.filename else ""
    return UserError(f"the working directory {root} cannot be packed: {error.strerror}{where}")


def _too_large(root: Path, total: int, sizes: dict[Path, int]) -> UserError:
    large = [path for path in sizes if sizes[path] > total / 100] or list(sizes)
    largest = sorted(large, key=lambda path: (-sizes[path], path))[:_NAMED]
    named = ", ".join(f"{p.relative_to(root)} ({_mib(sizes[p])})" for p in largest)
    return UserError(
        f"the working directory {root} has {_mib(total)} that are not ignored, and a cluster takes "
        f"{_mib(LIMIT_BYTES)} packed: name in .gitignore or .rayignore what the job does not need, "
        f"and put data on shared storage; the largest: {named}"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.3g} MiB" if size < 2**20 * 1000 else f"{size / 2**30:.3g} GiB"
