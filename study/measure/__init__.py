"""Measurements: one file per kind of measurement, each with its cell.

A *cell* is a function that measures one block of a recording (one prompt, or one setting, with all its methods) and
returns its rows:

    race       times any method on a prompt and counts its forwards
    texts      compares greedy texts by the near-tie rule
    replays    replays growth rules along a text
    verifiers  compares two verifiers on the same drafts
    forwards   times forwards by their size
    laws       tests whether methods sample from the target's distribution
    branches   measures how alike the branches of self-drafters are

``live`` runs a cell on several prompts without recording. ``loading`` loads what is needed once per process: pairs,
draft models, this machine's prices. ``clock`` times forwards and keeps measurements apart.
"""
