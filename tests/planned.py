"""What a recording will measure, before it is recorded."""

from itertools import product

from study.experiments import Experiment
from study.quantities import HEADS, Heads, chains_of, replayed, verified
from training import recipes


def known(recording: Experiment | Heads) -> set[str]:
    """The methods that a recording measures, as ``quantities`` names them; of heads, those that can be trained."""
    if recording is HEADS:
        return {*recipes.TABLE, *(f"{head}-1" for head in recipes.TABLE)}
    settings = {**recording.settings, **recording.over}
    if recording.cell.name == "rules":
        return of_rules(settings)
    if recording.cell.name == "verifiers":
        heats = settings["temperature"]
        heats = heats if isinstance(heats, list) else [heats]
        parts = product(settings["heads"], settings["shapes"], ("traversal", "token-level"), heats)
        return {verified(*each) for each in parts}
    return set(settings["methods"])


def of_rules(settings: dict) -> set[str]:
    """The names of replays."""
    softened = settings.get("softened", [1.0])
    if "lengths" in settings:
        return {replayed(*each) for each in product(settings["head"], settings["rules"], settings["lengths"], softened)}
    named = {replayed(*each) for each in product(settings["head"], settings["rules"], [None], softened)}
    return named | {chains_of(head, by) for head, by in product(settings["head"], softened)}
