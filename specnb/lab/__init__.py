"""The laboratory: methods by name, one function that times any of them, paired statistics, and what is recorded.

``methods`` has the grammar of names; ``run`` times a method on a prompt or compares its text; ``stats`` pairs and
gives intervals; ``prices`` and ``replay`` forecast from counts; ``coinless`` compares verifiers; ``metrics`` measures
acceptance; ``sweep`` records blocks; ``experiments`` is the table of all recordings. Command: ``python -m specnb.lab``.
"""

from specnb.lab import coinless, methods, metrics, prices, replay, stats, sweep
from specnb.lab.experiments import EXPERIMENTS, first_edition, listing, record, recorded, stale
from specnb.lab.run import greedy_text, loaded, race, texts, timed
from specnb.lab.stats import difference, interval, ratio, speed_ups
