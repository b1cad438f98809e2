"""The study: what it takes to judge five papers, in a checkout of the repository.

``methods`` is the table of all methods by short names; ``measure`` times them on prompts, compares their texts, and
measures what recordings hold; ``record`` keeps blocks in files, resumable, and ``experiments`` is the table of what is
recorded. ``metrics`` tells what steps accepted. ``quantities`` makes of recordings what is compared, ``stats`` pairs it
and gives intervals; ``replay`` says what other growth rules would have done along a recorded text, and ``prices`` what
forwards cost. ``paper`` has the papers' printed numbers; ``claims`` judges their sentences and ``figures`` redraws
their figures, a module a paper each; ``verdicts`` shows what became of the claims. ``commands`` run all from the shell:
``python -m study``.

Import what you need by name: ``from study import experiments, stats``.
"""
