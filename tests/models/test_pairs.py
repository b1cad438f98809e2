"""Loading pairs: folders, dtypes, shared tokenizers; text to ids and back."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from fallback import byte_fallback, spelt
from tiny import TEMPLATE, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from specnb import masks, models
from specnb.models import packing, pairs

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "In 2024 about 1,234,567.89 people paid 3e-4 each; 007 did not.",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # tabs\tand spaces\n",
    "Ça va, œuvre? Zażółć gęślą jaźń — naïve façade, Straße, ελληνικά, 日本語, 🙂🏽",
    " leading and trailing ",
]


def folder(path, seed: int = 0, **options) -> str:
    """A tiny random Llama with its tokenizer, saved to a folder."""
    torch.manual_seed(seed)
    made = tokenizer(**options)
    config = LlamaConfig(
        vocab_size=len(made),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    made.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return folder(tmp_path_factory.mktemp("tiny"), template=TEMPLATE)


@pytest.fixture(scope="module")
def pair(tiny) -> models.Pair:
    return models.load_pair(tiny, dtype="float32", device="cpu")


# --- loading


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.float64])
def test_a_local_folder_in_the_asked_dtype(tiny, dtype):
    pair = models.load_pair(tiny, dtype=dtype, device="cpu")
    expected = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert {parameter.dtype for parameter in pair.target.parameters()} == {expected}
    assert pair.target.device.type == "cpu"
    assert not pair.target.training
    assert pair.draft is None
    assert pair.name == tiny
    logits = pair.target(torch.tensor([pair.encode("hello")])).logits
    assert logits.dtype == expected
    assert logits.isfinite().all()


def test_the_weights_are_those_in_the_folder(tiny, pair):
    torch.manual_seed(0)
    again = LlamaForCausalLM(pair.target.config)
    for name, value in again.state_dict().items():
        assert torch.equal(value, pair.target.state_dict()[name]), name


def test_the_default_device_is_the_best_there_is(tiny):
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert models.best_device().type == expected
    assert models.load_pair(tiny, dtype="float32").target.device.type == expected


def test_auto_placement(tiny):
    pair = models.load_pair(tiny, dtype="float32", device="auto")
    assert pair.target(torch.tensor([pair.encode("hello")]).to(pair.target.device)).logits.isfinite().all()


def test_a_draft_beside_the_target(tiny, tmp_path):
    small = folder(tmp_path, seed=1, template=TEMPLATE)
    pair = models.load_pair(tiny, dtype="bfloat16", device="cpu", draft=small)
    assert pair.draft.dtype == pair.target.dtype == torch.bfloat16
    assert not pair.draft.training
    assert not torch.equal(pair.draft.lm_head.weight, pair.target.lm_head.weight)


def one_line(error: pytest.ExceptionInfo) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["no/such/folder", "./folder", "../folder", "/folder", "~/folder", "a/b/c", "magic"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_folder_that_does_not_exist_is_refused_before_the_hub_is_asked(tiny, name, role):
    names = {"name": name} if role == "target" else {"name": tiny, "draft": name}
    with pytest.raises(ValueError, match=re.escape(f"unknown pair {name!r}: known are smollm2-135m, ")):
        models.load_pair(**names, dtype="float32")


def test_a_model_that_is_fetched_is_announced_and_an_unreachable_hub_is_asked_once(monkeypatch, capsys):
    asked = []

    def unreachable(url, timeout):
        asked.append((url.rsplit("/", 1)[1], timeout))
        raise TimeoutError("no route\nto host")

    monkeypatch.setattr(pairs, "get_hf_file_metadata", unreachable)
    with pytest.raises(
        OSError, match="some/model is no folder here and the Hugging Face hub does not give it"
    ) as error:
        models.load_pair("some/model", dtype="float32", device="cpu")
    assert (
        "(TimeoutError): check the name, your access to it and the network, or load a local folder or smollm2-135m"
        in (one_line(error))
    )
    assert asked == [("config.json", 10)]
    assert capsys.readouterr().out == "fetching some/model from the Hugging Face hub …\n"


def test_a_model_in_the_hubs_cache_is_not_fetched(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pairs, "try_to_load_from_cache", lambda name, file: str(tmp_path / file))
    monkeypatch.setattr(pairs, "get_hf_file_metadata", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(OSError, match="some/model has no tokenizer to read"):  # transformers finds the cache empty
        models.load_pair("some/model", dtype="float32", device="cpu")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("file", "part"), [("tokenizer*", "tokenizer"), ("*.safetensors", "model")])
def test_a_folder_with_a_part_missing_names_the_part(tmp_path, file, part):
    path = Path(folder(tmp_path))
    for found in path.glob(file):
        found.unlink()
    with pytest.raises(OSError, match=f"has no {part} to read: save one there with save_pretrained") as error:
        models.load_pair(str(path), dtype="float32", device="cpu")
    assert one_line(error).startswith(str(path))


# --- the dtype that a machine is fastest in


@pytest.mark.parametrize(
    ("device", "kernels", "chosen", "packed"),
    [
        ("cpu", {torch.bfloat16, torch.float32}, "bfloat16", True),
        ("cpu", {torch.bfloat16}, "bfloat16", True),
        ("cpu", {torch.float32}, "float32", True),
        ("cpu", set(), "float32", False),
        ("auto", {torch.bfloat16}, "bfloat16", True),
        ("cuda", {torch.bfloat16}, "bfloat16", False),
        ("cuda:1", {torch.float32}, "float32", False),  # a GPU that only emulates bfloat16
        ("mps", {torch.bfloat16, torch.float32}, "float32", False),
    ],
)
def test_the_fastest_dtype_that_is_exact_enough(device, kernels, chosen, packed, monkeypatch):
    monkeypatch.setattr(packing, "possible", lambda dtype: dtype in kernels)
    monkeypatch.setattr(pairs, "best_device", lambda: torch.device("cpu"))
    real = torch.bfloat16 in kernels
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: real or including_emulation)
    assert pairs.fastest_dtype(device) == (chosen, packed)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_a_pair_without_a_dtype_takes_the_fastest_and_says_which(tiny, kernels, asked, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(packing, "possible", lambda dtype: kernels)
    monkeypatch.setattr(packing, "pack", lambda model: seen.append(model) or model)
    pair = models.load_pair(tiny, device="cpu", packed=asked)
    assert pair.target.dtype == (torch.bfloat16 if kernels else torch.float32)
    assert bool(seen) == (kernels if asked is None else asked)
    said = f"{'bfloat16' if kernels else 'float32'}{', packed weights' if seen else ''} on cpu"
    assert capsys.readouterr().out == f"{tiny}: {said}\n"


@pytest.mark.parametrize("quantised", [False, True])
def test_a_quantised_checkpoint_is_not_packed_by_itself(quantised, tmp_path, monkeypatch):
    made, asked = folder(tmp_path, template=TEMPLATE), []
    monkeypatch.setattr(pairs, "fastest_dtype", lambda where: ("float32", True))
    monkeypatch.setattr(pairs, "_load", lambda name, kind, where, packed: asked.append(packed) or (None, None))
    if quantised:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "x"}}))
    models.load_pair(made, device="cpu", check=False)
    assert asked == [not quantised]
    models.load_pair(made, device="cpu", packed=True, check=False)  # asked for, it is tried: packing says why not
    assert asked[1:] == [True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_that_is_named_is_taken_unpacked_and_in_silence(tiny, dtype, monkeypatch, capsys):
    monkeypatch.setattr(packing, "possible", lambda dtype: True)
    monkeypatch.setattr(packing, "pack", lambda model: pytest.fail("packed"))
    assert models.load_pair(tiny, dtype=dtype, device="cpu").target.dtype == getattr(torch, dtype)
    assert capsys.readouterr().out == ""


def test_loading_leaves_the_settings_of_transformers_alone(tiny):
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_info()
        logging.disable_progress_bar()
        models.load_pair(tiny, dtype="float32", device="cpu")
        assert logging.get_verbosity() == logging.INFO
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before[0])
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()


@pytest.mark.parametrize("name", ["int8", "float", "bf16", ""])
def test_an_unknown_dtype_names_the_known_ones(name):
    message = f"unknown dtype '{name}': known are bfloat16, float16, float32, float64"
    for call in (models.as_dtype, lambda dtype: models.load_pair("no-such/model", dtype=dtype)):
        with pytest.raises(ValueError, match=message):
            call(name)


def test_known_dtypes():
    for name in ("bfloat16", "float16", "float32", "float64"):
        assert models.as_dtype(name) is getattr(torch, name) is models.as_dtype(getattr(torch, name))


@pytest.mark.parametrize(
    ("other", "example"),
    [({"shift": 1}, "is 5 and 4"), ({"more": ("<extra>",)}, "is None and 4|is 4 and 5"), ({"shift": 100}, " is ")],
    ids=["shifted", "one more", "all moved"],
)
def test_different_tokenizers_are_refused_by_name(tiny, tmp_path, other, example):
    draft = folder(tmp_path, **other)
    with pytest.raises(ValueError, match="have different tokenizers") as error:
        models.load_pair(tiny, dtype="float32", device="cpu", draft=draft)
    message = str(error.value)
    assert message.startswith(f"{tiny} and {draft} ")
    assert "choose a draft made for this target" in message
    assert "\n" not in message


@pytest.mark.parametrize("swap", [False, True])
def test_the_refusal_gives_a_token_that_differs(swap):
    a, b = tokenizer(), tokenizer(more=("<extra>",))
    a, b = (b, a) if swap else (a, b)
    with pytest.raises(ValueError, match="for example") as error:
        pairs.check_tokenizers(a, b, "A", "B")
    message = str(error.value)
    assert f"({len(a)} and {len(b)} tokens" in message
    token, left, right = _example(message)
    assert (a.get_vocab().get(token), b.get_vocab().get(token)) == (left, right)
    assert left != right


def _example(message: str):
    """The token and its two ids in "… for example 'x' is 1 and None): …"."""
    text = message.split("for example ", 1)[1].split("): choose", 1)[0]
    token, ids = text.rsplit(" is ", 1)
    left, right = (None if part == "None" else int(part) for part in ids.split(" and "))
    return ast.literal_eval(token), left, right


def test_a_token_only_the_draft_has_is_refused_too():
    a, b = tokenizer(), tokenizer()
    b.add_tokens(["<extra>"])
    with pytest.raises(ValueError, match="'<extra>' is None and 260"):
        pairs.check_tokenizers(a, b, "A", "B")


def test_equal_tokenizers_pass():
    pairs.check_tokenizers(tokenizer(), tokenizer(template=TEMPLATE), "A", "B")


def test_the_pairs_by_name():
    assert models.PAIRS[models.EMBEDDED] == (models.EMBEDDED, None)
    assert {"pythia-2.8b", "llama2-7b", "llama3.1-8b", "qwen2.5-7b", "vicuna-7b"} < set(models.PAIRS)
    for target, draft in models.PAIRS.values():
        assert target == models.EMBEDDED or (target.count("/") == 1 and draft.count("/") == 1)


# --- text and ids


def test_encode_with_the_chat_template(pair):
    ids = pair.encode("Hi")
    assert pair.tokenizer.decode(ids) == "<user>Hi<bot>"
    assert ids[-1] == pair.tokenizer.convert_tokens_to_ids("<bot>")  # one token, open answer
    assert pair.encode("Hi", chat=True) == ids
    assert all(type(token) is int for token in ids)


def test_encode_bare_text(pair):
    ids = pair.encode("Hi", chat=False)
    assert pair.tokenizer.decode(ids) == "Hi"
    assert len(ids) == 2


def test_encode_without_a_template_takes_the_bare_text(tmp_path):
    pair = models.load_pair(folder(tmp_path), dtype="float32", device="cpu")
    assert pair.tokenizer.chat_template is None
    assert pair.encode("Hi") == pair.encode("Hi", chat=False)


def test_a_chat_turn_has_no_second_start_of_text(tmp_path):
    path = folder(tmp_path, template="<s>" + TEMPLATE, bos=True)  # as Llama-2 and Llama-3 do
    pair = models.load_pair(path, dtype="float32", device="cpu")
    assert pair.tokenizer.decode(pair.encode("Hi")) == "<s><user>Hi<bot>"
    assert pair.tokenizer.decode(pair.encode("Hi", chat=False)) == "<s>Hi"


@pytest.mark.parametrize("text", TEXTS)
def test_decode_is_the_inverse_of_encode(pair, text):
    assert pair.decode(pair.encode(text, chat=False)) == text
    assert pair.decode(iter(pair.encode(text, chat=False))) == text
    assert pair.decode(torch.tensor(pair.encode(text, chat=False))) == text


def test_decode_leaves_out_special_tokens(pair):
    assert pair.decode(pair.encode("Hi")) == "Hi"


def test_pieces_are_one_label_per_token_with_visible_spaces(pair):
    text = "a b\nc\td"
    ids = pair.encode(text, chat=False)
    assert pair.pieces(ids) == ["a", "␣", "b", "⏎", "c", "\t", "d"]
    assert pair.pieces([]) == []
    specials = pair.pieces(pair.encode("x"))
    assert specials == ["<user>", "x", "<bot>"]
    assert len(pair.pieces(pair.encode("é", chat=False))) == 2  # half a character is still a label


def unmarked(pieces: list[str]) -> str:
    """Pieces joined, their signs for spaces and line ends undone."""
    return "".join(pieces).replace("␣", " ").replace("⏎", "\n")


@pytest.mark.parametrize("text", [*TEXTS, "🙂🏽é" * 70])
def test_pieces_joined_are_the_text(pair, text):
    for cut in range(4):  # of a character at the end too
        ids = pair.encode(text, chat=False)
        ids = ids[: len(ids) - cut]
        assert unmarked(pair.pieces(ids)) == pair.decode(ids)
        assert len(pair.pieces(torch.tensor(ids))) == len(ids)


def test_a_character_belongs_to_the_token_that_completes_it(pair):
    ids = pair.encode("aé 😀", chat=False)
    assert pair.pieces(ids) == ["a", "", "é", "␣", "", "", "", "😀"]
    assert pair.pieces(ids[:2]) == ["a", "�"]  # nothing completes it
    assert pair.pieces([*ids[:2], ids[3], ids[0]]) == ["a", "�", "␣", "a"]  # nor here, and its neighbour is as it was


def test_pieces_keep_the_spaces_of_words_that_lose_them_alone():
    made = models.Pair("x", None, None, byte_fallback())
    ids = spelt("▁The", "▁cat", "s", "▁sat", ",", "▁", "你", "▁", "▁The", "é", ".")
    assert made.pieces(ids[1:2]) == ["cat"]  # the first space of a text is none
    words = ["The", "␣cat", "s", "␣sat", ",", "␣", "", "", "你", "␣", "␣The", "", "é", "."]
    assert made.pieces(ids) == words
    many = made.pieces(ids * 30)  # more than are read at once
    assert many == [*words, *(["␣The", *words[1:]] * 29)]


def test_pieces_of_a_long_text_read_no_token_a_growing_number_of_times(pair, monkeypatch):
    read, decode = [], pair.tokenizer.decode
    monkeypatch.setattr(pair.tokenizer, "decode", lambda ids: read.append(len(ids)) or decode(ids))
    work = []
    for length in (1_000, 4_000):
        read.clear()
        pair.pieces(pair.encode("a" * length, chat=False))
        work.append(sum(read) / length)
    assert work[1] < 1.1 * work[0]
    assert len(read) >= 4_000


# --- the embedded model


@pytest.mark.model
def test_smollm2_is_loaded_as_asked(smollm2):
    assert smollm2.name == models.EMBEDDED
    assert smollm2.draft is None
    assert smollm2.target.dtype == torch.float32
    assert smollm2.target.device.type == "cpu"
    assert not smollm2.target.training
    assert smollm2.target.config.vocab_size == len(smollm2.tokenizer) == 49_152
    assert sum(p.numel() for p in smollm2.target.parameters()) == 134_515_008


@pytest.mark.model
def test_smollm2_in_bfloat16():
    pair = models.load_pair(dtype="bfloat16", device="cpu")
    assert {parameter.dtype for parameter in pair.target.parameters()} == {torch.bfloat16}
    assert pair.target.device.type == "cpu"


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_decode_is_the_inverse_of_encode(smollm2, text):
    assert smollm2.decode(smollm2.encode(text, chat=False)) == text


@pytest.mark.model
def test_smollm2_chat_template_ends_with_the_open_answer(smollm2):
    ids = smollm2.encode("Name a colour.")
    text = smollm2.tokenizer.decode(ids)
    assert text.endswith("<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>assistant") == 1
    special = smollm2.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert ids.count(special) == text.count("<|im_start|>")  # one token each, not its letters


@pytest.mark.model
def test_smollm2_knows_its_capitals(smollm2):
    ids = torch.tensor([smollm2.encode("The capital of France is", chat=False)])
    with torch.no_grad():
        best = smollm2.target(ids).logits[0, -1].argmax()
    assert smollm2.decode([best]) == " Paris"


@pytest.mark.model
def test_a_pair_is_checked_when_asked_for(capsys, monkeypatch):
    models.load_pair(dtype="float32", check=True)
    assert re.search(
        r"^smollm2-135m scores trees as their paths, exact to \de-0\d of the largest", capsys.readouterr().out
    )
    monkeypatch.setattr(
        masks, "tree_mask", lambda tree, length, **kind: torch.zeros(1, 1, len(tree), length + len(tree))
    )
    with pytest.raises(ValueError, match=r"a llama model .* scores a tree unlike the tree's paths"):
        models.load_pair(dtype="float32", check=True)
