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
    words = json.loads(files.in_checkout(WORDS).read_text(encoding="utf-8"))
    rng = np.random.default_rng(seed)

    def one(name: str) -> str:
        return words[name][rng.integers(len(words[name]))]

    def function_to_finish() -> str:
        order = one("orders")
        verb = one("verbs")
        noun = one("nouns")
        arguments = one("arguments")
        docstring = one("docstrings")
        return f"{order}:\n\n```python\ndef {verb}_{noun}({arguments}:\n{docstring}"

    def task() -> str:
        return one("tasks")

    def story_with_a_sum() -> str:
        return f"{one('names')} {one('deeds')}"

    def plain_sum() -> str:
        return one("sums").format(name=one("people"), other=one("people"), n=one("numbers"))

    def text_to_read() -> str:
        return one("readings") + one("subjects")

    def translation() -> str:
        return one("translations").format(tongue=one("tongues")) + one("sentences")

    def question() -> str:
        return one("questions")

    shares = {
        function_to_finish: 0.32,
        task: 0.08,
        story_with_a_sum: 0.15,
        plain_sum: 0.15,
        text_to_read: 0.12,
        translation: 0.09,
        question: 0.09,
    }
    kinds = list(shares)
    drawn = []
    for _ in range(count):
        number = rng.choice(len(kinds), p=list(shares.values()))
        opening = kinds[number]()
        drawn.append(opening.rstrip(" "))
    return drawn
