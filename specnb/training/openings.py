"""First words of questions, so that the target writes dialogues about code, sums and texts as well as about itself.

Left to its own devices SmolLM2 asks about recipes and travel: 3 of 100 questions name Python and 2 ask for a number.
Here a question's first words are put together at random, and the target goes on from there.
"""

from collections.abc import Callable

import numpy as np

ORDERS = (
    "Finish this function", "Please fill in the body of this Python function",
    "Implement the function below in Python", "Here is the beginning of a Python function. Write the rest of it",
    "Write the missing code", "This Python function is not finished. Complete it for me",
    "Give me a working version of this function",
)  # fmt: skip
VERBS = (
    "count", "find", "remove", "is", "get", "sum", "merge", "sort", "filter", "check", "compute", "make", "largest",
    "smallest", "split", "reverse", "rotate", "replace", "has", "convert", "encode", "longest", "nearest", "join",
    "unique", "common", "average", "next", "product_of", "group",
)  # fmt: skip
NOUNS = (
    "numbers", "words", "pairs", "digits", "string", "list", "prefix", "primes", "vowels", "letters", "brackets",
    "intervals", "matrix", "rows", "duplicates", "even", "odd", "date", "sequence", "palindrome", "factors",
    "values", "grades", "substring", "range", "dictionary", "square", "triangle", "spaces", "points", "closest",
    "median",
)  # fmt: skip
ARGUMENTS = (
    "text: str) -> str", "text: str) -> int", "text: str) -> bool", "n: int) -> int", "n: int) -> bool",
    "numbers: list) -> int", "numbers: List[int]) -> List[int]", "numbers: List[float]) -> float",
    "words: List[str]) -> List[str]", "words: list) -> dict", "a: int, b: int) -> int", "n, k)", "arr)", "s)",
    "x, y)", "lst)", "lst, k)", "grid)", "a: str, b: str) -> bool", "values: dict) -> list",
)  # fmt: skip
DOCSTRINGS = ('    """', '    """ ', "    '''\n    ", '    """\n    ', '    """Return', '    """Given', '    """ Write')
TASKS = (
    "Write a Python function that takes a list of", "Write a Python function that returns the",
    "In Python, how do I", "Write a function which checks whether a string", "Write Python code to read a",
    "Explain what this code does:\n\n", "Write a Python class for a",
    "I have a list of numbers in Python and want to", "Fix the error in this code:\n\n",
    "Write a short Python program that asks for", "How would you sort a list of", "Write a recursive function for",
)  # fmt: skip
NAMES = (
    "Anna", "Omar", "Lucy", "Marcus", "Priya", "Tom", "Elena", "Kofi", "Sarah", "Ben", "Mei", "Carlos", "Hannah",
    "Ivan", "Nadia", "Paul", "Rosa", "Sam", "Tara", "Victor", "Julia", "Daniel", "Grace", "Leo", "Maria", "Noah",
    "A farmer", "A baker", "A school", "A factory", "A shop", "A train", "A librarian", "A gardener",
    "The Lopez family",
)  # fmt: skip
DEEDS = (
    "has", "buys", "bought", "sold", "earns", "needs", "made", "collected", "baked", "walks", "drives", "read",
    "spends", "saved", "planted", "picked", "received", "pays", "runs", "uses", "ordered", "works",
)  # fmt: skip
SUMS = (
    "There are {n} students in a class.", "If {n} workers can", "A box holds {n}", "The price of a", "At a fair,",
    "A recipe calls for {n} cups of", "{name} is {n} years old.", "In a game, {name} scored {n} points", "How many",
    "A rectangle is {n} meters", "What is {n} percent of", "{name} and {other} share {n}", "Each of the {n}",
    "Twice as many", "Work it out step by step: {name}", "A ticket costs ${n}", "A tank holds {n} liters of water",
    "Every day {name}", "In the morning {name}", "On Monday, {name}", "It takes {name} {n} minutes",
)  # fmt: skip
SUBJECTS = (
    "The bicycle", "Volcanoes", "Honey bees", "The city of", "The river", "Coffee", "In 18", "A new study",
    "The museum", "The company", "Last year the town council", "Bread", "Glass is made", "Whales", "The telephone",
    "The first railway", "Clouds form when", "The forest", "Salt", "In a small village", "The bridge", "Paper was",
    "The moon", "Solar panels", "A vaccine", "The old harbour", "Sleep is", "Potatoes", "Wind", "Many birds",
    "The library", "Clocks", "Cheese is",
)  # fmt: skip
READINGS = (
    "Summarize this text in two sentences:\n\n", "Give a short summary of the following paragraph.\n\n",
    "What is the main point of this text?\n\n", "Shorten this for a newspaper:\n\n",
    "Read the text and answer the question at its end.\n\n", "Text: ",
    "Using just this passage, answer my question.\n\n",
)  # fmt: skip
TONGUES = ("French", "German", "Spanish", "Italian", "Portuguese", "Dutch", "Swedish", "Polish", "Latin", "English")
TRANSLATIONS = (
    "Translate into {tongue}: ", "How do you say this in {tongue}? ",
    "Please translate this letter to {tongue}:\n\n", "Put these sentences into {tongue}:\n\n",
)  # fmt: skip
SENTENCES = (
    "The", "My sister", "We", "I would like", "Yesterday", "Please", "Our train", "She", "The children", "Dear Mr",
    "He", "It was", "Thank you", "Where", "The weather", "When I was", "They", "Could you", "This", "After dinner",
)  # fmt: skip
QUESTIONS = (
    "Who was", "Which country", "In which year", "What is the difference between", "Why do", "How does a",
    "Name three", "What happens when", "Where is the", "I am planning", "Please write a short letter", "My friend",
    "Give me advice", "I want to learn", "Write a polite message", "What should I", "Describe", "How can I",
    "Tell me a story about",
)  # fmt: skip


def openings(count: int = 6000, seed: int = 0) -> list[str]:
    """First words of questions: two in five about code, three in ten sums, the others of five kinds; same every time.

    None ends with a space, so that the words that follow are tokenised as usual, unless the target starts a word
    of its own (after a passage's heading).
    """
    rng = np.random.default_rng(seed)
    kinds: tuple[Callable[[Callable], str], ...] = (_function, _code, _deed, _sum, _reading, _translation, _question)
    shares = (0.32, 0.08, 0.15, 0.15, 0.12, 0.09, 0.09)

    def one(of: tuple[str, ...]) -> str:
        return of[rng.integers(len(of))]

    return [kinds[rng.choice(len(kinds), p=shares)](one).rstrip(" ") for _ in range(count)]


def _function(one) -> str:
    return f"{one(ORDERS)}:\n\n```python\ndef {one(VERBS)}_{one(NOUNS)}({one(ARGUMENTS)}:\n{one(DOCSTRINGS)}"


def _code(one) -> str:
    return one(TASKS)


def _deed(one) -> str:
    return f"{one(NAMES)} {one(DEEDS)}"


def _sum(one) -> str:
    return one(SUMS).format(name=one(NAMES[:26]), other=one(NAMES[:26]), n=one(tuple(map(str, range(2, 100)))))


def _reading(one) -> str:
    return one(READINGS) + one(SUBJECTS)


def _translation(one) -> str:
    return one(TRANSLATIONS).format(tongue=one(TONGUES)) + one(SENTENCES)


def _question(one) -> str:
    return one(QUESTIONS)
