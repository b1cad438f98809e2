"""A real browser on JupyterLab, and a mouse that moves every control of a widget."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path

import server
from PIL import Image
from playwright.sync_api import ElementHandle, Page, TimeoutError

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell in the page, seen or not
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "filebrowser-extension/browser": {"showLastModifiedColumn": False},  # else no two pictures were alike
}
PATIENCE = 600_000  # milliseconds for the cells of a notebook
ANSWER = 60_000  # milliseconds for a control

# --- a server


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab of its own on folder/notebooks, with no setting of the user's."""
    for name, values in SETTINGS.items():
        file = folder / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(dumps(values), encoding="utf-8")
    (folder / "notebooks").mkdir()
    command = [sys.executable, "-m", "jupyterlab", "--expose-app-in-browser"]
    with server.running([*command, f"--ServerApp.root_dir={folder / 'notebooks'}"], folder) as address:
        yield address


# --- a notebook in the browser

SCRIPT = """
window.complaints = [];  // what the kernel says on stderr, and its exceptions
window.heard = 0;        // when it last said anything
window.session = () => window.jupyterapp?.shell.currentWidget?.context?.sessionContext;
window.idle = () => session()?.session?.kernel?.status === "idle";
window.listen = () => session().iopubMessage.connect((_, message) => {
    window.heard = performance.now();
    const {name, text, evalue, traceback} = message.content;
    if (message.header.msg_type === "error") complaints.push([evalue, ...traceback].join("\\n"));
    if (name === "stderr") complaints.push(text);
});
window.run = () => jupyterapp.commands.execute("notebook:run-all-cells").then(done => { window.ran = done; });
window.pixels = image => {  // null while it is loading
    if (!image.complete || !image.naturalWidth) return null;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL();
};
window.look = box => [...box.querySelectorAll("img, .widget-html-content")].map(
    part => part.tagName === "IMG" ? pixels(part) : part.innerHTML);
window.remember = box => { [window.since, window.before] = [performance.now(), look(box).join()]; };
window.cut = box => [...box.querySelectorAll(".widget-label")].filter(e => e.scrollWidth > e.clientWidth)
    .map(e => e.textContent);
window.settled = box => idle() && heard > since && performance.now() - heard > 300 && !look(box).includes(null);
"""


def open_notebook(page: Page, address: str, path: str) -> None:
    """Open a notebook of the server and run all its cells; AssertionError if one raises."""
    page.add_init_script(SCRIPT)
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/lab/workspaces/{Path(path).stem}/tree/{path}")
    page.wait_for_function("idle()")
    page.evaluate("() => { listen(); run(); }")
    page.wait_for_function("window.ran !== undefined")
    complaints = page.evaluate("complaints")
    assert page.evaluate("ran"), "\n".join(complaints)


def box_of(page: Page, place: int) -> ElementHandle:
    """The output of the place-th cell, once it shows something."""
    box = page.locator(".jp-Notebook .jp-Cell").nth(place).locator(".jp-Cell-outputArea").element_handle()
    page.wait_for_function("box => look(box).length && !look(box).includes(null)", arg=box)
    return box


# --- controls: where each stands and could stand, and how a mouse puts it there


class Control:
    """A control of a widget: an element, and the page that it is in."""

    def __init__(self, page: Page, element: ElementHandle):
        self.page, self.element = page, element

    def enabled(self) -> bool:
        return self.element.evaluate("e => !e.closest('[disabled]') && !e.querySelector('[disabled]')")


class Slider(Control):
    """A slider's handle; its places are shares of the track."""

    def track(self) -> dict[str, float]:
        return self.element.evaluate("e => e.closest('.noUi-base').getBoundingClientRect().toJSON()")

    def centre(self) -> tuple[float, float]:
        self.element.scroll_into_view_if_needed()
        box = self.element.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def places(self) -> list[float]:
        x, _ = self.centre()
        here = (x - self.track()["x"]) / self.track()["width"]
        ends = sorted((0.0, 1.0), key=lambda end: -abs(end - here))
        return [here, *(end for end in ends if abs(end - here) > 0.05)]

    def put(self, share: float) -> None:
        x, y = self.centre()
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(self.track()["x"] + share * self.track()["width"], y, steps=8)
        self.page.mouse.up()


class Menu(Control):
    """A dropdown; its places are its options."""

    def places(self) -> list[int]:
        here, count = self.element.evaluate("e => [e.selectedIndex, e.options.length]")
        return [here, *(i for i in range(count) if i != here)]

    def put(self, option: int) -> None:
        self.element.select_option(index=option)


class Press(Control):
    """A button or a box to tick: all one can do is press it."""

    def places(self) -> list[None]:
        return [None, None]

    def put(self, place: None) -> None:
        self.element.click()


KINDS = {
    ".noUi-handle": Slider,
    "select": Menu,
    ".widget-button, .widget-play button:first-child, input[type=checkbox]": Press,
}
UNKNOWN = "input:not([type=checkbox]), textarea, button:not(.widget-button, .widget-play *)"


def drive(page: Page, box: ElementHandle) -> int:
    """Move every control of a widget that is not disabled, and back; how many there were.

    AssertionError if there is none, if one changes neither picture nor readout, if the kernel complains, or if a
    label has no room.
    """
    page.evaluate("complaints.length = 0")
    assert not box.query_selector_all(UNKNOWN), "a control that nobody knows how to move"
    assert page.evaluate("box => cut(box)", box) == [], "a label is cut off"
    controls = [kind(page, element) for name, kind in KINDS.items() for element in box.query_selector_all(name)]
    enabled = [control for control in controls if control.enabled()]
    for control in enabled:
        home, *others = control.places()
        assert any(moves(control, box, place) for place in others), f"{type(control).__name__}: nothing changes"
        moves(control, box, home)
    assert enabled, "no control to move"
    return len(enabled)


def moves(control: Control, box: ElementHandle, place) -> bool:
    """Put a control into a place; whether picture or readout are different once the kernel is done."""
    page = control.page
    page.evaluate("box => remember(box)", box)
    control.put(place)
    try:
        page.wait_for_function("heard > since", timeout=ANSWER / 3)
    except TimeoutError:  # on a busy machine a drag can get lost: a control that works hears the second
        control.put(place)
    page.wait_for_function("box => settled(box)", arg=box, timeout=ANSWER)
    complaints = page.evaluate("complaints")
    assert not complaints, "\n".join(complaints)
    return page.evaluate("box => look(box).join() !== before", box)


def photograph(page: Page, box: ElementHandle, file: Path) -> None:
    """A picture of the page with the widget at its top, the side bar closed and the last slider moved."""
    page.evaluate("jupyterapp.shell.collapseLeft()")
    for handle in box.query_selector_all(".noUi-target:not([disabled]) .noUi-handle")[-1:]:
        slider = Slider(page, handle)
        moves(slider, box, 0.8 if slider.places()[0] < 0.5 else 0.2)
    box.evaluate("e => e.scrollIntoView()")
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256).save(file, optimize=True)
