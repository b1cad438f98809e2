"""Trained draft heads: small modules beside a frozen target, their files, and the draft models around them.

``modules`` has EAGLE (also HASS and TALF), EDD, Medusa and the small independent model (VDM); ``files`` loads, saves
and hashes them (data/drafts); ``drafts`` makes a loaded head a draft model for ``TreeDrafter``; ``calibration``
measures whether its confidence is true.
"""

from specnb.heads.calibration import calibrated_ece, ece, reliability
from specnb.heads.drafts import draft_model, load_draft
from specnb.heads.files import FOLDER, fingerprint, hashes, load, path, save
from specnb.heads.modules import MODULES, Eagle, Eagle3, Edd, Frozen, Medusa, Spec, Vdm, as_causal_lm, final_norm
