"""Measuring: one file a kind of measurement, each with the cell that recordings hold.

A *cell* is a function that measures one block of a recording (one prompt, or one setting, with all its methods) and
returns its rows. ``race`` times any method on a prompt and counts its forwards; ``texts`` compares greedy texts by the
near-tie rule; ``replays`` replays growth rules along a text; ``verifiers`` compares two verifiers on the same drafts;
``forwards`` measures what forwards cost by their size; ``laws`` samples methods' laws; ``branches`` tells how alike
self-drafted branches are. ``live`` runs a cell here and now, on several prompts.

``loading`` holds what is loaded once a process: pairs, draft models, this machine's prices; ``clock`` times forwards
and keeps measurements apart.
"""
