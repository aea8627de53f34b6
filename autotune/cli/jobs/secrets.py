"""Which variables and values hold credentials, and must not be put into a job."""

from __future__ import annotations

import re

from autotune.tracking.uris import has_credentials

_SECRET = re.compile(  # in a name whose words are apart: TOKENIZERS and MONKEY are harmless
    r"SECRET|CREDENTIAL|PASS(WORD|WD|PHRASE|CODE)|(?<!MAX_)(?<!NUM_)TOKENS?(_|$)"
    r"|(^|(?<!NUM)_)(PG)?PASS(_|$)|(^|(?<!PUBLIC)(?<!SORT)_)KEY(_|$)|._PWD$|(^|_)AUTH$|AUTHORIZATION"
    r"|(API|ACCESS|PRIVATE|SSH|SIGNING|ENCRYPTION|ACCOUNT)_?KEY"
    r"|(^|_)(BEARER|COOKIE|JWT|PAT)(_|$)",
    re.IGNORECASE,
)
_SETTING = re.compile(r"""(\w+)(?:=|["']\s*:|:\s)""")  # A=..., "A": ..., A: ...
_CREDENTIAL = re.compile(  # in a setting within a value, where a key mostly is no secret
    r"SECRET|PASS(WORD|WD|PHRASE)|(^|_)TOKEN$|AUTHORIZATION|(API|ACCESS|PRIVATE|ACCOUNT)_?KEY",
    re.IGNORECASE,
)
_TOKEN = re.compile(  # what services begin their tokens with
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16}|gh[opsur]_[A-Za-z0-9]{16}|github_pat_\w{16}"
    r"|glpat-[\w-]{16}|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[a-z]-[A-Za-z0-9-]{10}|xapp-[A-Za-z0-9-]{10}"
    r"|AIza[\w-]{30}|npm_[A-Za-z0-9]{30}|pypi-[\w-]{30}|dapi[0-9a-f]{30}|nvapi-[\w-]{30}"
    r"|(?:sk|rk)_(?:live|test)_\w{16}|gsk_[A-Za-z0-9]{30}|eyJ[\w-]{8,}\.eyJ[\w-]{8})"
    r"|(?<![\w/.-])sk-(?=[A-Za-z_-]*\d)[\w-]{16}"
)
_PLAIN = re.compile(
    r"(Bearer|Basic)\s|(?!\d+:\d+@)[^\s/\\@:]+:[^\s/\\@]+@|-----BEGIN .*PRIVATE KEY"
)


def secret(variable: str) -> bool:
    """Whether a variable's name says that its value must not be put into a job.

    >>> secret("MLFLOW_TRACKING_PASSWORD"), secret("HF_KEY"), secret("KEYBOARD")
    (True, True, False)
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", variable)
    return _SECRET.search(apart) is not None


def holds_secret(value: str) -> bool:
    """Whether a value has credentials in it, whatever its variable is called.

    >>> holds_secret("http://me:Pa55w@host"), holds_secret("dbname=a password=b")
    (True, True)
    """
    starts = [match.start() for match in re.finditer(r"[A-Za-z][\w+.-]*://", value)]
    if any(has_credentials(value[start:].split()[0]) for start in starts):
        return True
    if _PLAIN.match(value) is not None or _TOKEN.search(value) is not None:
        return True
    return any(map(_CREDENTIAL.search, _SETTING.findall(value)))
