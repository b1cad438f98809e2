"""What notebooks show: trees, masks, texts and charts, a stepper and explorers to drag, source code.

``look`` has colours, style and files; ``trees`` and ``charts`` draw into Axes; ``stepper`` replays a generation;
``explorers``, ``laws`` and ``growing`` are the other widgets, over one ``explorer(controls, render)``; ``judged`` draws
what a judge of samplers found; ``source`` displays an algorithm.
Nothing here shows a figure by itself, and no room imports this one.
"""

from specnb.show.charts import draw_mask, draw_text, kinds, ranked, trend
from specnb.show.explorers import explorer, growth_explorer
from specnb.show.growing import growing_explorer, record_frames
from specnb.show.judged import draw_laws, draw_scripts, price_explorer
from specnb.show.laws import acceptance_explorer, law_explorer, trial_explorer
from specnb.show.look import COLOURS, INK, LOOKS, save, use_style
from specnb.show.source import source
from specnb.show.stepper import stepper
from specnb.show.trees import draw_tree, legend, score_notes, tree_table
