"""The study: what it takes to judge five papers.

``methods`` has the grammar of names, and ``names`` tells mistyped ones at once; ``run`` times a method on a prompt or
compares its text; ``stats`` pairs and gives intervals; ``prices`` and ``replay`` forecast from counts; ``coinless``
compares verifiers; ``metrics`` measures acceptance; ``gpu`` is what only a GPU is asked; ``sweep`` records blocks;
``experiments`` is the table of recordings; ``claims`` judges what the papers say by ``values`` of these, and by what
needs no model: ``theorems`` on small cases, algorithms ``as_printed``, ``arithmetic`` of the numbers in each ``paper``;
``verdicts`` shows what became of them, ``figures`` the papers' figures beside ours;
``commands`` run all from the shell.
"""

from specnb import late

__getattr__, __dir__ = late(
    __name__, arithmetic="", as_printed="", claims="", coinless="", figures="paper_figure", gpu="", methods="",
    metrics="", names="", paper="", prices="", replay="", sweep="", theorems="", values="", verdicts="",
    experiments="EXPERIMENTS listing record recorded stale", run="greedy_text loaded race texts timed",
    stats="difference interval ratio speed_ups",
)  # fmt: skip
