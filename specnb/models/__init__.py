"""Models and prompts: files fetched and kept, target/draft pairs by name, prompt sets.

``pairs`` loads a model with its tokenizer (``load_pair``); ``prompts`` has the prompt sets; ``packing`` lays weights
out for the CPU's bfloat16 kernels; ``graphs`` records forward passes (CUDA graphs); ``windows`` evicts old tokens from
a cache (StreamingLLM); ``files`` and ``provenance`` fetch, write and sign files.
"""

from specnb.models import files, prompts, provenance
from specnb.models.graphs import Graphs
from specnb.models.packing import PackedLinear, pack
from specnb.models.pairs import EMBEDDED, PAIRS, Pair, check_name, device, dtype, load_pair
from specnb.models.windows import Window
