"""Explorers: plain ipywidgets over pure functions that return a PNG.

``explorer(controls, render)`` carries all of them. Its box has ``controls``, a namespace of the sliders, readout and
image, and ``answer(**values)``, picture and words at any settings; saved in a notebook it leaves its picture for pages
without a kernel. Explorers of small laws are in ``laws``, of PTD's growing tree in ``growing``.
"""

import html
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace

import ipywidgets
from torch import Tensor

from specnb import growth
from specnb.growth import Growth
from specnb.show.look import canvas, png
from specnb.show.trees import draw_tree, score_notes, tree_table
from specnb.tree import Draft, TokenTree

Picture = bytes | tuple[bytes, str]  # PNG, or PNG and a line of words
Int = ipywidgets.IntSlider
Float = ipywidgets.FloatSlider
Share = partial(ipywidgets.FloatLogSlider, step=0.1, readout_format=".3f")  # its min and max are powers of ten

# A picture that is being computed: the earlier words are dimmed, with a sign over them, so that nothing moves. The
# browser shows it only after the delay: what is drawn at once does not flicker.
DELAY = "0.4s"
BUSY = f"""<style>
@keyframes specnb-dim {{ to {{ opacity: 0.3; }} }}
@keyframes specnb-sign {{ to {{ opacity: 1; }} }}
.specnb-before {{ animation: specnb-dim 0s {DELAY} forwards; }}
.specnb-sign {{ animation: specnb-sign 0s {DELAY} forwards; opacity: 0; position: absolute; top: 0; left: 0; z-index: 1;
  padding: 0 0.5em; background: white; color: black; border: 1px solid; }}
</style>
<div style="position: relative">
<b class="specnb-sign" role="status">computing …</b>
<div class="specnb-before">{{words}}</div>
</div>"""


READOUT = "72px"  # room for three lines: fewer words do not let the page jump


class Explorer(ipywidgets.VBox):
    """Controls over a picture: see ``explorer``."""

    def now(self) -> dict:
        """Where the controls stand, by name."""
        return {name: getattr(self.controls, name).value for name in self.names}

    def _repr_mimebundle_(self, **options) -> dict:
        picture = b64encode(self.controls.image.value).decode()
        return {**super()._repr_mimebundle_(**options), "image/png": picture}


def explorer(
    controls: Mapping[str, ipywidgets.Widget],
    render: Callable[..., Picture],
    *,
    row: int = 2,
    walk: Sequence[dict] = (),
) -> Explorer:
    """Controls by name, ``row`` of them in a row, over the picture render(**values); its words or an error's above.

    While render works, the readout says so (``busy``).
    walk: all settings, one after the other, where there is such an order; a page without a kernel follows it.
    """
    image = ipywidgets.Image(format="png")
    readout = ipywidgets.HTML()
    readout.layout.min_height = READOUT

    def answer(**values) -> tuple[bytes, str]:
        try:
            picture = render(**values)
        except ValueError as error:
            return bytes(image.value), html.escape(str(error))
        return picture if isinstance(picture, tuple) else (picture, "")

    def redraw(change=None) -> None:
        words = readout.value
        readout.value = busy(words)
        try:
            image.value, words = answer(**box.now())
        except Exception as error:  # in a callback it would reach a log that nobody has open, and no reader
            words = stale(error)
            raise
        finally:
            readout.value = words

    box = Explorer()
    box.controls = SimpleNamespace(**controls, image=image, readout=readout)
    box.names = list(controls)
    box.answer = answer
    box.walk = list(walk)
    for name, control in controls.items():
        _prepare(name, control)
        control.observe(redraw, "value")
    redraw()

    widgets = list(controls.values())
    rows = [ipywidgets.HBox(widgets[i : i + row]) for i in range(0, len(widgets), row)]
    box.children = (*rows, readout, image)
    return box


def _prepare(name: str, control: ipywidgets.Widget) -> None:
    """Give a control what it does not say itself: its name in front, a width; and let a drag draw once, at its end."""
    if not control.description:
        control.description = name
    if hasattr(control, "continuous_update"):
        control.continuous_update = False
    control.style.description_width = "initial"
    if not control.layout.width:
        control.layout.width = "26em"


def stale(error: Exception) -> str:
    """HTML of a readout above a picture that could not be drawn anew."""
    words = html.escape(f"{type(error).__name__}: {error}")
    return f"<b>The picture is still that of other settings.</b> {words}"


def busy(words: str) -> str:
    """HTML of a readout while the next picture is computed: the words so far, and over them "computing …"."""
    return BUSY.replace("{words}", words)


def reach(slider: Int, top: int) -> None:
    """Let a slider go up to top. The browser's refuses an empty range: one without a choice is 0..1 and disabled."""
    slider.max = max(top, 1)
    slider.disabled = top == 0


# ---- growth rules on a recorded step -----------------------------------------------------------------------------


SETTINGS = {
    growth.DynaTree: lambda: {
        "depth": Int(8, 1, 8),
        "branch": Int(3, 1, 4),
        "threshold": Share(0.03, min=-2, max=-0.3),
        "budget": Int(40, 1, 128),
    },
    growth.Pct: lambda: {
        "cost": Share(0.1, min=-2, max=0),
        "leaf": Share(0.01, min=-3, max=-0.5),
        "k": Int(3, 1, 5),
        "depth": Int(10, 1, 10),
    },
    growth.Salf: lambda: {
        "threshold": Float(0.6, min=0, max=0.95, step=0.05),
        "beam": Int(4, 1, 10),
        "total": Int(20, 2, 60),
        "fill": ipywidgets.Checkbox(False),
    },
}  # by rule, what makes its sliders: each explorer has its own


def growth_explorer(
    tree: TokenTree, scores: Tensor, labels: Sequence[str], kind: type[Growth] = growth.DynaTree, **fixed: float
) -> Explorer:
    """A growth rule's settings as sliders on a recorded step; the tree and its cost follow.

    tree, scores: of ``replay.record`` with a larger tree; labels: one text per node. kind: one of SETTINGS, whose
    settings without a slider may be fixed.
    """

    def render(**settings: float) -> Picture:
        nodes, frontiers = growth.regrow(tree, scores, kind(**settings, **fixed), max_depth=len(tree))
        table = tree_table(Draft(tree.keep(nodes)), labels=[labels[node] for node in nodes])
        with canvas(11, 5.4) as figure:
            draw_tree(table, ax=figure.add_axes((0, 0, 1, 1)), notes=score_notes(scores, nodes))
            picture = png(figure)

        covers = float(scores[nodes][1:].sum())  # without the root
        words = _cost(kind, nodes, frontiers, covers)
        if kind is growth.Pct:
            gain = covers - settings["cost"] * len(frontiers)
            words += f" · gains {gain:.2f} target calls before verification"
        if kind is growth.Salf:
            sums = ", ".join(f"{float(scores[frontier].sum()):.2f}" for frontier in frontiers)
            words += f" · S by forward: {sums}"
        return picture, words

    return explorer(SETTINGS[kind](), render)


def _cost(kind: type[Growth], nodes: Sequence[int], frontiers: Sequence[Sequence[int]], covers: float) -> str:
    """What a grown tree cost, in words: nodes, forwards of the draft model, and the tokens expected from them.

    frontiers: the nodes that each forward expanded; SALF chooses them from the whole tree, others from a level.
    """
    how = "" if kind is growth.Salf else ", a level at a time"
    fed = sum(map(len, frontiers))
    return (
        f"{len(nodes) - 1} draft tokens · {len(frontiers)} draft forwards{how} ({fed} if fed node by node)"
        f" · covers {covers:.2f} expected tokens"
    )
