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
    return _PLAIN.match(value) is not None or any(map(_CREDENTIAL.search, _SETTING.findall(value)))
