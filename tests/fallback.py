"""A tokenizer as Llama 2's: words hold the space before them, which a text's first one loses; the rest is bytes."""

from tokenizers import Tokenizer, decoders
from tokenizers import models as vocabularies
from transformers import PreTrainedTokenizerFast

WORDS = ("▁The", "▁cat", "▁sat", "▁on", "▁", "s", ".", ",")


def byte_fallback(words: tuple[str, ...] = WORDS) -> PreTrainedTokenizerFast:
    """Token ids: 0 to 255 are bytes, then come the words, "▁" for a space."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {word: 256 + place for place, word in enumerate(words)}
    raw = Tokenizer(vocabularies.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def spelt(*parts: str) -> list[int]:
    """Ids of parts, words as they are and anything else as its bytes."""
    ids = []
    for part in parts:
        ids += [256 + WORDS.index(part)] if part in WORDS else list(part.encode())
    return ids
