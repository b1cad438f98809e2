"""Drafters: who fills the tree. ``TreeDrafter`` asks a draft model; ``NgramDrafter`` looks the text up in itself."""

from specnb.drafters.base import Drafter
from specnb.drafters.model_tree import TreeDrafter
from specnb.drafters.ngram import NgramDrafter

__all__ = ["Drafter", "NgramDrafter", "TreeDrafter"]
