"""Drafters: who fills the tree. ``TreeDrafter`` asks a draft model; ``NgramDrafter`` looks the text up in itself.

``ProgressiveDrafter`` (PTD), ``SelfDrafter`` and ``LookaheadDrafter`` let the target draft for itself;
``RetrievalDrafter`` asks a datastore of the target's texts, too; ``MergedDrafter`` puts such paths into a draft model's
tree.
"""

from specnb.drafters.base import Drafter
from specnb.drafters.lookahead import LookaheadDrafter
from specnb.drafters.merged import MergedDrafter
from specnb.drafters.model_tree import TreeDrafter
from specnb.drafters.ngram import NgramDrafter
from specnb.drafters.ptd import ProgressiveDrafter
from specnb.drafters.retrieval import Datastore, RetrievalDrafter
from specnb.drafters.self_draft import Corpus, SelfDrafter

__all__ = [
    "Corpus",
    "Datastore",
    "Drafter",
    "LookaheadDrafter",
    "MergedDrafter",
    "NgramDrafter",
    "ProgressiveDrafter",
    "RetrievalDrafter",
    "SelfDrafter",
    "TreeDrafter",
]
