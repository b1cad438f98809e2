"""Drafters propose the draft trees: with a draft model, by looking text up, or with the target itself.

- ``tree_drafter`` grows a tree with a draft model and a growth rule. ``draft_models`` has draft models: any causal LM;
  trained heads are in ``specnb.heads``.
- ``ngram`` and ``retrieval`` look up continuations in texts.
- ``merged`` unites the drafts of two drafters. ``auto`` chooses their size by the seconds of a forward, and
  ``seconds`` measures these.
- ``ptd``, ``self_draft`` and ``lookahead`` let the target draft for itself; ``pools`` has what they share.
- ``textbook`` has PTD's four moves as the paper prints them.
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
