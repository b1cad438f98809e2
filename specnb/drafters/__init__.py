"""Drafters fill the tree: a draft model's likeliest or sampled tokens, text looked up, or the target itself.

``tree_drafter`` grows a tree with a draft model (``draft_models``: any causal LM; trained heads are in ``heads``) and
a growth rule; ``ngram`` and ``retrieval`` look texts up; ``merged`` unites two drafts; ``auto`` sizes them by what
forwards cost, and ``seconds`` measures that; ``ptd``, ``self_draft`` and ``lookahead`` let the target draft for itself,
from ``pools``; ``textbook`` has PTD's four moves.
A new drafter is a class with begin, propose and observe (``specnb.decode.Drafter``); study/methods.py gives it a name.
"""

from specnb.decode import Drafter, PlainDrafter
from specnb.drafters import pools, seconds, textbook
from specnb.drafters.auto import AutoDrafter
from specnb.drafters.draft_models import CausalLMDraft, DraftForwards, DraftModel, TableDraft, Tempered, first_is_root
from specnb.drafters.lookahead import LookaheadDrafter
from specnb.drafters.merged import MergedDrafter
from specnb.drafters.ngram import NgramDrafter
from specnb.drafters.ptd import ProgressiveDrafter
from specnb.drafters.retrieval import Datastore, RetrievalDrafter
from specnb.drafters.self_draft import Corpus, SelfDrafter
from specnb.drafters.tree_drafter import TreeDrafter
