"""Tokens of a tokenizer's file, `tokenizer.json`, as those of pretrained models have.

The library `tokenizers`, which comes with transformers, reads it. Nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.models.library import imported, one_line

SUFFIX = ".json"


def is_file(tokens: str) -> bool:
    """Whether the configuration's `tokens` names a tokenizer's file."""
    return tokens.endswith(SUFFIX)


def encoded(path: str, parts: tuple[str, str]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Two parts of a text as tokens, int64, and the vocabulary.

    No tokens are added at the ends, and no part is shortened.

    Raises:
        FileNotFoundError: there is no such file; one line.
        ValueError: it is no tokenizer's, or the library is not installed; one line.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"tokens: there is no file {path}")
    library = imported("tokenizers", f"tokens {path!r}", "transformers")
    try:
        tokenizer: Any = library.Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"tokens: {path} is no tokenizer's file: {one_line(error)}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    train, val = (
        torch.tensor(tokenizer.encode(part, add_special_tokens=False).ids, dtype=torch.int64)
        for part in parts
    )
    numbers = tokenizer.get_vocab(with_added_tokens=True)
    names = {number: name for name, number in numbers.items()}
    return train, val, tuple(names.get(i, f"<{i}>") for i in range(max(names) + 1))
