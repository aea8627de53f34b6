"""Sizes of transformers' language models: ours, the library's, or those beside a file of weights.

`layers`, `width` and `heads` change a new model; its perceptron and its key and value heads change
in the same proportion. Everything else is as the library's configuration class has it. With weights
of a file, the `config.json` in its folder has the sizes, if there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIG = "config.json"
SIZES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
}
"""A configuration's own key for each of ours."""

_ELSEWHERE = (  # what would have the library fetch code or kernels, or change the weights
    *("auto_map", "attn_implementation", "_attn_implementation", "fusion_config"),
    *("quantization_config", "transformers_weights"),
)
_PERCEPTRON = ("intermediate_size", "ffn_dim", "decoder_ffn_dim")
_DECODER = {"num_hidden_layers": "decoder_layers", "num_attention_heads": "decoder_attention_heads"}
Sizes = Mapping[str, int | None]
"""Some of `SIZES`; None: the library's."""


def new(kind: Any, vocabulary: int, sizes: Sizes, longest: int) -> Any:
    """The configuration of a new model.

    Args:
        kind: its class.
        vocabulary: the number of tokens.
        longest: tokens of the longest sequence; the model has as many places at least.
    """
    usual = kind()
    given: dict[str, Any] = {}
    for size, value in sizes.items():
        key = SIZES[size]
        if value is not None and not hasattr(usual, key):
            raise ValueError(f"{size} is no size of {kind.__name__}, which has no {key}")
        if value is not None:
            given[key] = value
    if given.keys() & {"hidden_size", "num_attention_heads"}:
        given |= _in_proportion(usual, given)
    for key, decoders in _DECODER.items():
        if key in given and hasattr(usual, decoders):
            given[decoders] = given[key]
    places = getattr(usual, "max_position_embeddings", None)
    if isinstance(places, int):
        given["max_position_embeddings"] = max(places, longest)
    if getattr(usual, "is_decoder", None) is False:
        given["is_decoder"] = True
    given |= {"vocab_size": vocabulary, "pad_token_id": None}  # every token is one of the text
    return kind(**{kind.attribute_map.get(key, key): value for key, value in given.items()})


def _in_proportion(usual: Any, given: Mapping[str, int]) -> dict[str, int]:
    """What changes with the width and the heads."""
    width = given.get("hidden_size", usual.hidden_size)
    found: dict[str, int] = {}
    for key in _PERCEPTRON:
        inner = getattr(usual, key, None)
        if isinstance(inner, int):
            found[key] = max(1, round(inner * width / usual.hidden_size))
    if not hasattr(usual, "num_attention_heads"):  # a model without attention
        return found
    heads = given.get("num_attention_heads", usual.num_attention_heads)
    shared = getattr(usual, "num_key_value_heads", None)
    if isinstance(shared, int):
        by = max(1, usual.num_attention_heads // shared)
        found["num_key_value_heads"] = heads // by if heads % by == 0 else heads
    if usual.to_dict().get("head_dim"):  # some derive it
        found["head_dim"] = width // heads
    return found


def beside(file: str | None) -> Path | None:
    """The configuration in the folder of a file of weights, if there is one."""
    found = None if file is None else Path(file).with_name(CONFIG)
    return found if found is not None and found.is_file() else None


def of_file(path: Path, kind: Any, vocabulary: int, sizes: Sizes) -> dict[str, Any]:
    """The content of a configuration beside a file, with at least so many tokens.

    Args:
        kind: the class of the model that was asked for.

    Raises:
        ValueError: it is of another model, cannot be read, or sizes are given too; one line.
    """
    try:
        found = json.loads(path.read_text())
        theirs, words = found["model_type"], max(found.get("vocab_size") or 0, vocabulary)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"weights: {path} cannot be read: {error!r}") from None
    if theirs != kind.model_type:
        is_of, asked = f"'transformers:{theirs}'", f"'transformers:{kind.model_type}'"
        raise ValueError(f"weights: {path} is of a model {is_of}, not of {asked}")
    given = [key for key, value in sizes.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]} must not be given where {path} has the sizes of the weights")
    return {**_sizes_of(found), "vocab_size": words}


def _sizes_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, and those in it of a model's parts, without what is elsewhere."""
    return {
        key: _sizes_of(value) if isinstance(value, dict) else value
        for key, value in found.items()
        if key not in _ELSEWHERE
    }


def faults_of(about: Mapping[str, Any], vocabulary: int) -> list[str]:
    """What a file's weights lack, or have too; another number of tokens is none."""
    faults = [f"{name} is missing in the file" for name in sorted(about["missing_keys"])]
    faults += [f"{name} is not in the model" for name in sorted(about["unexpected_keys"])]
    for name, theirs, ours in sorted(about["mismatched_keys"]):
        if ours[0] != vocabulary or theirs[1:] != ours[1:]:
            faults.append(f"{name} is {tuple(theirs)} in the file and {tuple(ours)} in the model")
    return faults


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Without the library's bars and reports: what is wrong is said in one line."""
    logging = library.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
