"""What the table of experiments will measure, before it is recorded."""

from itertools import product

from study import experiments, methods
from training import recipes


def known(name: str) -> set[str]:
    """The methods that an experiment measures, as ``values`` spells them; of heads, those that can be trained."""
    if name == "heads":
        return {*recipes.TABLE, *(f"{head}-1" for head in recipes.TABLE)}
    wanted = experiments.EXPERIMENTS[name]
    settings = wanted.settings | wanted.over
    if wanted.cell == "rules":
        named = [f"{head}:{rule}" for head in settings["head"] for rule in (*methods.rules(settings["rules"]), "chain")]
        return {f"{one} at {n}" for one in named for n in settings["lengths"]} if "lengths" in settings else set(named)
    if wanted.cell == "verifiers":
        heats = settings["temperature"] if isinstance(settings["temperature"], list) else [settings["temperature"]]
        parts = product(settings["heads"], settings["shapes"], ("traversal", "token-level"), heats)
        return {f"{head}:{shape} {rule} at {heat}" for head, shape, rule, heat in parts}
    return set(settings["methods"])
