"""Text as tokens on the device, and windows of it drawn at random.

The windows of a step are a function of the seed and the tokens seen only: the position of a window
is a hash of the two. So a checkpoint needs no random state, and the windows do not depend on the
number of ranks or the batch size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from trainers.data import tokenizer
from trainers.data.images import require_data
from trainers.data.stream import NO_LABEL, Batch, passes
from trainers.parallel.ranks import Ranks

NAMED = ("tinyshakespeare", "synthetic")
TOKENS = ("characters", "words")
TRAIN_SHARE = 0.9
UNKNOWN = "<unknown>"
SHORTEST = 100  # characters
EVALUATED = 2**22  # scores in a forward pass of an evaluation
_WORD = re.compile(r"\w+|[^\w\s]|\n")


@dataclass(frozen=True)
class Text:
    """Tokens for training and validation, int64, and the vocabulary."""

    train: Tensor
    val: Tensor
    vocabulary: tuple[str, ...]


def text_file(name: str, data_dir: str | None) -> Path | None:
    """The file of the text `name`: its own, or the path that `name` is; None for "synthetic".

    Raises:
        FileNotFoundError: it is missing; one line that says where to put it.
    """
    if name == "synthetic":
        return None
    if name == "tinyshakespeare":
        return require_data(name, data_dir) / name / "input.txt"
    path = Path(name).resolve()
    if path.is_file():
        return path
    near = get_close_matches(name, NAMED, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    named = ", ".join(NAMED)
    raise FileNotFoundError(f"text must be one of {named} or a file's path, got {name!r}{hint}")


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ValueError: a file that is not UTF-8 or too short.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"text must be UTF-8, {path} is not: {error}") from None
    if len(text) < SHORTEST:
        raise ValueError(f"text must have at least {SHORTEST} characters, {path} has {len(text)}")
    return text


@lru_cache(maxsize=1)
def synthetic_text(words: int = 60_000) -> str:
    """Sentences of a small grammar: each of 50 words is followed by one of 4. Always the same.

    A model of the last letter is much worse than one of the last word.
    """
    random = Random(0)
    syllables = [c + v for c in "bdfgklmnprst" for v in "aeiou"]
    lexicon = ["".join(random.choices(syllables, k=random.choice((1, 2, 2, 3)))) for _ in range(50)]
    followers = [random.sample(range(50), 4) for _ in lexicon]
    weights = tuple(accumulate((0.5, 0.25, 0.15, 0.1)))
    found, word = [], 0
    for place in range(words):
        found.append(lexicon[word])
        if place % 12 == 11:
            found.append(".\n")
        (follower,) = random.choices(followers[word], cum_weights=weights)
        word = follower
    return " ".join(found)


def tokenised(text: str, tokens: str, vocabulary: int) -> Text:
    """The first nine tenths of a text for training, the rest for validation, as tokens.

    Args:
        tokens: "characters", all that the text has; or "words", marks and line ends, of which the
            most frequent of the training part are known and the others are one unknown word; or a
            file, `trainers.data.tokenizer`.
        vocabulary: the most words that are known, the unknown one among them; at least 2.

    >>> tokenised("to be or not to be. " * 9, "words", 4).vocabulary
    ('<unknown>', 'to', 'be', 'or')
    """
    cut = int(len(text) * TRAIN_SHARE)
    if tokenizer.is_file(tokens):
        return Text(*tokenizer.encoded(tokens, (text[:cut], text[cut:])))
    if tokens == "words":
        parts = [_WORD.findall(part) for part in (text[:cut], text[cut:])]
        known = (word for word, _ in Counter(parts[0]).most_common(vocabulary - 1))
        names = (UNKNOWN, *known)
        number = {name: i for i, name in enumerate(names)}
        train, val = (torch.tensor([number.get(word, 0) for word in part]) for part in parts)
        return Text(train, val, names)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known_codes, found = np.unique(codes, return_inverse=True)
    all_of_it = torch.from_numpy(found.astype(np.int64))
    return Text(all_of_it[:cut], all_of_it[cut:], tuple(map(chr, known_codes.tolist())))


@lru_cache(maxsize=2)
def _load(path: Path | None, tokens: str, vocabulary: int, device: torch.device) -> Text:
    text = tokenised(synthetic_text() if path is None else read_text(path), tokens, vocabulary)
    return Text(text.train.to(device), text.val.to(device), text.vocabulary)


def load_text(
    name: str, data_dir: str | None, tokens: str, vocabulary: int, device: torch.device
) -> Text:
    """The text `name`, `tokenised`, on `device`; a process reads it only once.

    Raises:
        FileNotFoundError: it is missing; one line that says where to put it.
        ValueError: a file that is not UTF-8 or too short.
    """
    known = vocabulary if tokens == "words" else 0  # characters are all known
    return _load(text_file(name, data_dir), tokens, known, device)


def hashed(key: int, numbers: Tensor) -> Tensor:
    """Random-looking int64 in [0, 2^53), a function of `key` and each of `numbers`.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014), on the device of `numbers`.
    """

    def mixed(x: Tensor, shift: int, factor: int) -> Tensor:
        return (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor

    x = numbers * _signed(0x9E3779B97F4A7C15) + _signed(key)
    x = mixed(mixed(x, 30, _signed(0xBF58476D1CE4E5B9)), 27, _signed(0x94D049BB133111EB))
    return ((x ^ ((x >> 31) & ((1 << 33) - 1))) >> 11) & ((1 << 53) - 1)


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


class TextStream:
    """Batches of windows of a text on the device.

    Args:
        text: of whose training part windows are drawn.
        val_size: validate on the first so many tokens of its validation part.
        val_length: in windows of so many tokens, one after another.
    """

    waited = 0.0

    def __init__(
        self, text: Text, seed: int, ranks: Ranks, val_length: int, val_size: int | None = None
    ) -> None:
        self.train_size = len(text.train)
        self.classes = len(text.vocabulary)
        self.kept = text.train.nbytes + text.val.nbytes
        self._text = text
        self._ranks = ranks
        self._key = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
        self._val_length = val_length
        self._val_size = len(text.val) - 1 if val_size is None else val_size

    def places(self, seen: int, batch_size: int, size: int) -> Tensor:
        """Where this rank's windows of the batch after `seen` tokens begin in the training text."""
        start, stop = self._ranks.share(0, batch_size)
        device = self._text.train.device
        tokens = torch.arange(start, stop, device=device) * size + seen
        return hashed(self._key, tokens) % (self.train_size - size)

    def take(self, seen: int, batch_size: int, size: int) -> Batch:
        within = torch.arange(size + 1, device=self._text.train.device)
        windows = self._text.train[self.places(seen, batch_size, size)[:, None] + within]
        return windows[:, :-1], windows[:, 1:]

    warm = take

    def dummy(self, count: int) -> Batch:
        shape = count, self._val_length
        x = torch.zeros(shape, dtype=torch.int64, device=self._text.train.device)
        return x, x.clone()

    def validation(self, size: int = EVALUATED) -> Iterator[Batch]:
        """The tokens in order, each once, in windows; padding of the last one has no label."""
        length, count = self._val_length, self._val_size
        rows = -(-count // length)
        x, y = (self._windows(start, rows, fill) for start, fill in ((0, 0), (1, NO_LABEL)))
        start, stop = self._ranks.share(0, rows)
        at_once = self._at_once(size)
        for low in range(start, stop, at_once):
            part = slice(low, min(low + at_once, stop))
            yield x[part], y[part]

    def evaluated(self) -> tuple[int, ...]:
        start, stop = self._ranks.share(0, -(-self._val_size // self._val_length))
        return passes(stop - start, self._at_once(EVALUATED))

    def _at_once(self, scores: int) -> int:
        """Windows in a forward pass that gives about so many scores."""
        return max(1, scores // (self._val_length * self.classes))

    def _windows(self, start: int, rows: int, fill: int) -> Tensor:
        tokens = self._text.val[start : start + self._val_size]
        missing = rows * self._val_length - len(tokens)
        return torch.nn.functional.pad(tokens, (0, missing), value=fill).view(rows, -1)

    def close(self) -> None: ...
