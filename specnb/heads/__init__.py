"""Trained draft heads: small modules that draft for a frozen target, their files, and draft models made of them.

``modules`` has the heads of EAGLE (also of HASS and TALF), EAGLE-3, EDD and Medusa, and the small independent model
(vdm). ``files`` loads, saves and hashes them (data/drafts). ``published`` reads heads that others have published, in
the formats of EAGLE, EAGLE-3, speculators and Medusa, and ``readings`` checks whether a head drafts as its file says.
``export`` writes our heads in these formats.
Of published checkpoints, which ``folders`` reads key by key, ``mtp`` makes the target's own multi-token prediction a
draft model, and ``dflash`` the blocks of DFlash.
``drafts`` makes a loaded head a draft model for ``TreeDrafter``. ``calibration`` measures how well a draft's confidence
agrees with its accuracy.
"""

from specnb.heads import published
from specnb.heads.calibration import calibrated_ece, ece, reliability
from specnb.heads.dflash import dflash
from specnb.heads.drafts import draft_model, load_draft
from specnb.heads.export import export
from specnb.heads.files import FOLDER, fingerprint, hashes, load, path, save
from specnb.heads.modules import MODULES, Eagle, Eagle3, Edd, Frozen, Medusa, Spec, Vdm, as_causal_lm, final_norm
from specnb.heads.mtp import mtp
from specnb.heads.readings import check
