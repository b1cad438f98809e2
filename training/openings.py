"""First words of questions, so that the target also writes dialogues about code, sums and texts.

Without them SmolLM2 asks about recipes and travel: 3 of 100 questions name Python and 2 ask for a number. Here the
first words of a question are put together at random from the lists in data/corpus/openings.json. The target writes the
rest of the question, and the answer.
"""

import json

import numpy as np

from specnb.models import files

WORDS = files.DATA / "corpus" / "openings.json"


def openings(count: int = 6000, seed: int = 0) -> list[str]:
    """The first words of ``count`` questions, the same for the same seed.

    Two in five are about code, three in ten are sums, and the others are texts to read, translations and questions.
    None ends with a space, so that the words that follow are tokenised as usual. (The space is part of the next word's
    token, except where the target begins a new paragraph, as after the heading of a passage.)
    """
    words = json.loads(files.in_checkout(WORDS).read_text(encoding="utf-8"))
    rng = np.random.default_rng(seed)

    def one(name: str) -> str:
        """An entry, drawn at random, of the list of this name."""
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

    shares = {  # kind of opening → its probability
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
