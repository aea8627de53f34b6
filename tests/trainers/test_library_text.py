"""Language models of transformers, from scratch and from files, with characters and own tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainers import language
from trainers.data.text import load_text, tokenised
from trainers.models.library_text import check_causal, language_model
from trainers.models.transformers_config import of_file

transformers = pytest.importorskip("transformers")

SIZES = {"layers": 2, "width": 16, "heads": 2}
CONFIG: dict[str, Any] = {
    "text": "synthetic",
    **SIZES,
    "optimizer": "adamw",
    "lr": 3e-3,
    "sequence_length": 16,
    "train_size": 2000,
    "val_size": 200,
    "batch_size": 8,
    "milestone": 512,
}
NAMES = (
    "gpt2",
    "llama",
    "gpt_neox",
    "opt",
    "qwen2",
    "qwen3",
    "mistral",
    "bloom",
    "bert",
    "falcon",
    "bart",
)


def model(name: str, vocabulary: int = 11, sizes: Any = SIZES, **keys: Any) -> Any:
    torch.manual_seed(0)
    return language_model(f"transformers:{name}", vocabulary, sizes, 16, **keys)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_the_vocabulary_and_the_sizes(name: str) -> None:
    made = model(name)
    assert made.training
    check_causal(made, f"transformers:{name}")
    units = made.units()
    assert len(units) == SIZES["layers"]
    largest = max(p.numel() for unit in units for p in unit.parameters())
    assert largest <= 8 * SIZES["width"] ** 2
    tokens = torch.arange(14).view(2, 7) % 11
    before = torch.get_rng_state()
    out = made(tokens)
    assert out.shape == (2, 7, 11)
    out.square().sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(made(tokens), out)


def test_flops_are_those_of_matrices_and_causal_attention() -> None:
    width, layers, words = 16, 2, 11
    gpt2 = model("gpt2").flops(7)
    assert gpt2 == 6 * (layers * 12 * width**2 + words * width) + 6 * layers * width * 8
    llama = model("llama").flops(7)
    inner = round(11008 * width / 4096)
    layer = 4 * width**2 + 3 * width * inner
    assert llama == 6 * (layers * layer + words * width) + 6 * layers * width * 8


def test_longer_sequences_than_usual_have_places() -> None:
    sizes = {"layers": 1, "width": 8, "heads": 1}
    made = language_model("transformers:gpt2", 5, sizes, 1500)
    assert made(torch.zeros(1, 1500, dtype=torch.int64)).shape == (1, 1500, 5)


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("llama", {"width": 10, "heads": 3}, "cannot be made so: "),
        ("gpt2", {"width": 10, "heads": 3}, "cannot be made so: "),
        ("mamba", {"heads": 2}, "cannot be made so: heads is no size of MambaConfig, which has no"),
        ("gemma3", {"layers": 2}, "cannot be made so: layers is no size of Gemma3Config, which"),
    ],
)
def test_sizes_that_do_not_go_together_are_one_line(
    name: str, sizes: dict[str, int], says: str
) -> None:
    with pytest.raises(ValueError, match=f"^model 'transformers:{name}' {says}") as refused:
        check_causal(model(name, sizes=sizes), f"transformers:{name}")
    assert "\n" not in str(refused.value)


class Average(nn.Module):
    """Scores that depend on all tokens."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.float().mean(1, keepdim=True)[..., None].expand(*tokens.shape, 3)


def test_a_model_that_sees_what_it_is_to_predict_is_refused() -> None:
    with pytest.raises(ValueError, match="sees the tokens that it is to predict"):
        check_causal(Average(), "transformers:average")


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_it_learns_goes_on_bit_for_bit_and_is_made_again(name: str, record: Any, same: Any) -> None:
    config = {**CONFIG, "model": f"transformers:{name}", "seed": 2}
    whole = record(config, 3, save_at=1)
    assert whole["freed"]
    first, *_, last = whole["metrics"]
    assert last["val_loss"] < first["val_loss"] - 0.2
    assert last["flops_per_second"] > 0
    rest = record({**config, "state": whole["state"]}, 2)
    assert same(rest["final"], whole["final"])
    made, example = language.train.model(config, [whole["final"]])  # type: ignore[attr-defined]
    assert not made.training
    assert (example.shape, example.dtype) == ((2, 16), torch.int64)
    text = load_text("synthetic", None, "characters", 0, torch.device("cpu"))
    tokens = text.val[:193]
    with torch.no_grad():
        scores = made(tokens[:-1].view(12, 16)).flatten(0, 1)
    loss = nn.functional.cross_entropy(scores, tokens[1:])
    shorter = record({**config, "val_size": 192, "state": whole["final"]}, 0)["metrics"][0]
    assert float(loss) == pytest.approx(shorter["val_loss"], rel=1e-5)


def test_the_trained_model_is_exported_as_a_graph(record: Any) -> None:
    """As it is registered: for any number of sequences, without the library's code."""
    config = {**CONFIG, "model": "transformers:gpt2"}
    state = record(config, 1)["final"]
    made, example = language.train.model(config, [state])  # type: ignore[attr-defined]
    batch = torch.export.Dim("batch")
    graph = torch.export.export(made, (example,), dynamic_shapes=({0: batch},)).module()
    tokens = torch.arange(80).view(5, 16) % 20
    torch.testing.assert_close(graph(tokens), made(tokens))


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a saved model, with its configuration and a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder = tmp_path_factory.mktemp("small")
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = {word: number for number, word in enumerate(("<unknown>", "to", "be", "or", "not"))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "hamlet.txt").write_text("to be or not to be. " * 120)
    return folder


def tuned(small: Path, **keys: Any) -> dict[str, Any]:
    own = {"text": str(small / "hamlet.txt"), "tokens": str(small / "tokenizer.json")}
    begins = {"model": "transformers:llama", "weights": str(small / "model.safetensors")}
    known = {
        **CONFIG,
        **dict.fromkeys(SIZES),
        "train_size": None,
        "val_size": 64,
        "milestone": 128,
        "batch_size": 4,
    }
    return {**known, **own, **begins, **keys}


def test_tokens_are_those_of_the_tokenizers_file(small: Path) -> None:
    path = str(small / "tokenizer.json")
    found = tokenised("not to be, or " * 20, path, 0)
    assert found.vocabulary == ("<unknown>", "to", "be", "or", "not")
    assert found.train[:6].tolist() == [4, 1, 2, 0, 3, 4]
    with pytest.raises(FileNotFoundError, match=r"^tokens: there is no file .*no.json$"):
        tokenised("text", str(small / "no.json"), 0)
    with pytest.raises(ValueError, match=r"^tokens: .*config.json is no tokenizer's file: "):
        tokenised("text", str(small / "config.json"), 0)


def test_a_training_begins_with_the_weights_and_sizes_of_a_folder(small: Path, record: Any) -> None:
    there = transformers.LlamaForCausalLM.from_pretrained(small)
    config = tuned(small, lr=0.0)
    found = record(config, 1)
    weights = found["final"]["learner"]["model"]
    for name, value in there.state_dict().items():
        assert torch.equal(weights[f"network.{name}"], value), name
    text = tokenised((small / "hamlet.txt").read_text(), config["tokens"], 0)
    tokens = text.val[:65]
    with torch.no_grad():
        scores = there(tokens[:-1].view(4, 16)).logits.flatten(0, 1)
    loss = nn.functional.cross_entropy(scores, tokens[1:])
    assert found["metrics"][0]["val_loss"] == pytest.approx(float(loss), rel=1e-5)
    made, _ = language.train.model(config, [found["final"]])  # type: ignore[attr-defined]
    assert made.network.config.vocab_size == 32


def test_other_tokens_have_new_rows_and_the_rest_is_of_the_file(
    small: Path, tmp_path: Path
) -> None:
    """Without the configuration beside it."""
    file = tmp_path / "model.safetensors"
    file.write_bytes((small / "model.safetensors").read_bytes())
    sizes = {"layers": 3, "width": 24, "heads": 2}
    with pytest.raises(ValueError, match=r"is of another model: .*mlp.*in the file and .*in the"):
        model("llama", sizes=sizes, file=str(file))
    scratch = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=7, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=round(11008 * 16 / 4096), head_dim=8,
        )
    )  # fmt: skip
    torch.save(scratch.state_dict(), tmp_path / "weights.pt")
    made = model("llama", file=str(tmp_path / "weights.pt"))
    for name, value in scratch.state_dict().items():
        own = made.network.state_dict()[name]
        if value.shape[0] == 7:
            assert own.shape[0] == 11, name
        else:
            assert torch.equal(own, value), name


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"layers": 2}, "layers must not be given where .*config.json has the sizes"),
        ({"model": "transformers:gpt2"}, "is of a model 'transformers:llama', not of 'transform"),
        ({"weights": "no.safetensors"}, "^weights: there is no file no.safetensors"),
        ({"tokens": "bpe"}, "^tokens must be one of characters, words, or the path of a tokenize"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    keys: dict[str, Any], says: str, small: Path, record: Any
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=says) as refused:
        next(language.train(tuned(small, **keys)))
    assert "\n" not in str(refused.value)


def test_a_damaged_configuration_is_one_line(small: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes())
    words = json.dumps({"model_type": "llama", "vocab_size": "many"})
    for content in ("{", json.dumps(["llama"]), "{}", words):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"^weights: .*config.json cannot be read") as refused:
            model("llama", file=str(tmp_path / "model.safetensors"))
        assert "\n" not in str(refused.value)


def test_entries_that_name_code_are_left_out_at_any_depth(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    code = {"auto_map": {"AutoModel": "code.Model"}, "_attn_implementation": "owner/kernel"}
    inner = {"hidden_size": 8, **code}
    path.write_text(json.dumps({"model_type": "llama", **code, "text_config": inner}))
    found = of_file(path, transformers.LlamaConfig, 5, {})
    assert found == {"model_type": "llama", "text_config": {"hidden_size": 8}, "vocab_size": 5}
