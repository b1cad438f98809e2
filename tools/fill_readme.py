"""Fill in the README's results, between its two marks, from the recorded race: ``make readme``."""

import re
from pathlib import Path
from textwrap import fill

import pandas as pd

from study import experiments, stats

README = Path(__file__).resolve().parent.parent / "README.md"
REGION = re.compile(r"(?<=<!-- results: make readme -->\n).*?(?=<!-- /results -->)", re.DOTALL)
SHOWN = {  # methods by the names under which they are recorded: what to call them, and who drafts
    "hass-salf + n-grams": ("HASS + SALF + n-grams", "a trained head, the text so far"),
    "auto": ("`auto`, sized by prices", "a trained head, the text so far, stored texts"),
    "hass-salf": ("HASS + SALF", "a trained head"),
    "retrieval": ("retrieval", "the text so far, stored texts"),
    "edd-pct": ("EDD + PCT", "a trained head"),
    "n-gram tree": ("n-gram tree", "the text so far"),
    "prompt lookup": ("transformers' prompt lookup", "the text so far"),
    "assistant": ("transformers' assistant", "a small model"),
    "ptd, 2 children, depth 4": ("PTD", "the target itself"),
    "generate": ("transformers' `generate`", "nobody"),
}
# What would begin a list, heading, quote or table at the start of a line.
MARK = re.compile(r" (?=(?:[-+*>|]|#{1,6}|\d+[.)])(?: |$))")
RATIO = "{ratio:.2f}× [{low:.2f}, {high:.2f}]"


def results(table: pd.DataFrame) -> str:
    """The text between the marks: how fast the two fastest methods are, a table, and how it was measured."""
    good = table[table["status"] == "ok"]
    good = good.assign(speed=good["tokens"] / good["seconds"])

    def lead(first: str, second: str) -> str:
        return RATIO.format(**stats.ratio(good, "speed", first, second))

    ranking = stats.speed_ups(table)["tau"]
    (best, second), settings, runs = ranking.index[:2], table.iloc[0], table["repetition"].nunique()
    beside = stats.ratio(good, "speed", best, second)
    apart = "slower" if beside["low"] > 1 else "faster" if beside["high"] < 1 else "not told apart from it"
    device, processor = settings["device"].removeprefix("cpu, "), settings["processor"]
    prompts, domains = table["prompt"].nunique(), table["domain"].nunique()
    own = table[~table["domain"].isin(["HumanEval", "GSM-100"])]["prompt"].nunique()
    written = good[good["repetition"] == 0].pivot(index="prompt", columns="method", values="text")
    shown = {name: (f"`{name}`", "") for name in (best, second)} | SHOWN
    rows = [
        f"| {' | '.join(shown[name])} | {tau:.2f} | {'1' if name == 'generate' else lead(name, 'generate')} |"
        for name, tau in ranking.items()
        if name in shown
    ]
    weights = ", weights packed for all, `generate` too" if settings["packed"] else ""
    said = [
        f"Measured on {settings['date']}: SmolLM2-135M-Instruct in {settings['dtype']}{weights}; {device},",
        f"{processor}; torch {settings['torch']}; {prompts} prompts, {domains} domains, up to {settings['length']}",
        f"greedy tokens, {runs} runs. Speed-ups: paired medians over prompts, 95 % bootstrap intervals.",
        f"Tokens per target call (τ): means over prompts. Of our 60 prompts {own} are here; on the others lookup and",
        f"the sizes of merged trees were tuned, on all how n-grams match. In {settings['dtype']} rounding parts texts:",
        f"the first method's is `generate`'s, token by token, on {(written[best] == written['generate']).sum()} of",
        f"{len(written)} prompts.",
    ]
    first = [
        f"{shown[best][0].partition(',')[0]} writes **{lead(best, 'generate')}** as fast as transformers' `generate`",
        f"({device}, {processor.partition(',')[0]}; 95 % interval), {lead(best, 'prompt lookup')} as fast",
        f"as its prompt lookup and {lead(best, 'assistant')} as its assistant. The second by the median,",
        f"{shown[second][0].partition(',')[0]}, is {apart}: {RATIO.format(**beside)}.",
    ]
    head = ["| method | who drafts | tokens per target call | speed-up over `generate` |", "|---|---|---|---|"]
    texts = [wrapped(" ".join(words)) for words in (first, said)]
    return "\n".join([texts[0], "", *head, *rows, "", texts[1], ""])


def wrapped(text: str) -> str:
    """A paragraph in lines of at most 120 columns, none of which begins like a list item, as "+ n-grams" would."""
    tied = MARK.sub("\N{NO-BREAK SPACE}", text)  # such a mark stays behind the word before it
    return fill(tied, 120, break_on_hyphens=False).replace("\N{NO-BREAK SPACE}", " ")


def filled(readme: str) -> str:
    """The README with its results as recorded; ValueError if its marks are not there, once each."""
    if len(REGION.findall(readme)) != 1:
        raise ValueError("the README should have one place between <!-- results: make readme --> and <!-- /results -->")
    return REGION.sub(lambda _: results(experiments.recorded("race")), readme)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
