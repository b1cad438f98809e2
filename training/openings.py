"""First words of questions, so that the target writes dialogues about code, sums and texts as well as about itself.

Left to its own devices SmolLM2 asks about recipes and travel: 3 of 100 questions name Python and 2 ask for a number.
Here a question's first words are put together at random (data/corpus/openings.json), and the target goes on from there.
"""

import json

import numpy as np

from specnb.models import files

WORDS = files.DATA / "corpus" / "openings.json"


def openings(count: int = 6000, seed: int = 0) -> list[str]:
    """First words of questions: two in five about code, three in ten sums, the others of three kinds; same every time.

    None ends with a space, so that the words that follow are tokenised as usual, unless the target starts a word
    of its own (after a passage's heading).
    """
    words, rng = json.loads(files.in_checkout(WORDS).read_text(encoding="utf-8")), np.random.default_rng(seed)

    def one(name: str) -> str:
        return words[name][rng.integers(len(words[name]))]

    def function() -> str:
        call = f"def {one('verbs')}_{one('nouns')}({one('arguments')}"
        return f"```python\n{call}:\n{one('docstrings')}"

    kinds = (
        (0.32, lambda: f"{one('orders')}:\n\n{function()}"),
        (0.08, lambda: one("tasks")),
        (0.15, lambda: f"{one('names')} {one('deeds')}"),
        (0.15, lambda: one("sums").format(name=one("people"), other=one("people"), n=one("numbers"))),
        (0.12, lambda: one("readings") + one("subjects")),
        (0.09, lambda: one("translations").format(tongue=one("tongues")) + one("sentences")),
        (0.09, lambda: one("questions")),
    )
    shares = [share for share, _ in kinds]
    return [kinds[rng.choice(len(kinds), p=shares)][1]().rstrip(" ") for _ in range(count)]
