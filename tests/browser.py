"""A real browser on JupyterLab: notebooks cut down to their widgets, and a mouse that moves every control of them."""

import ast
import dis
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from types import CodeType

import nbformat
from playwright.sync_api import ElementHandle, Page

WIDGET = "application/vnd.jupyter.widget-view+json"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell in the page, seen or not
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
PATIENCE = 300_000  # milliseconds for whatever a test waits for

# --- a notebook cut down to the cells that its widgets need


def names(code: CodeType) -> tuple[set[str], set[str]]:
    """The global names that a compiled cell binds, and those it reads before it binds them."""
    bound, read = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            read |= {step.argval} - bound
        elif isinstance(step.argval, CodeType):
            read |= names(step.argval)[1] - bound
    return bound, read


def changed(source: str) -> set[str]:
    """The names behind every ``name.attribute = …`` and ``name[…] = …`` of a cell."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            while isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            found |= {node.id} if isinstance(node, ast.Name) else set()
    return found


def needed(sources: Sequence[str], wanted: Sequence[int]) -> list[int]:
    """Which cells must run for the wanted ones to run, in order: who last bound, or changed, what they read."""
    keep = set(wanted)
    for last in wanted:
        missing = names(compile(sources[last], "cell", "exec"))[1]
        for i in reversed(range(last)):
            bound, read = names(compile(sources[i], "cell", "exec"))
            if missing & (bound | changed(sources[i])):
                keep.add(i)
                missing = missing - bound | read
    return sorted(keep)


def widget_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells that were saved with a widget as output."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in code if any(WIDGET in output.get("data", {}) for output in cell.outputs)]


def cut(path: Path) -> tuple[nbformat.NotebookNode, dict[str, int]]:
    """The notebook's widget cells and what they need, without outputs; the widgets' names and places in it."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    wanted = [code.index(cell) for cell in widget_cells(notebook)]
    kept = needed([cell.source for cell in code], wanted)
    places = {f"{path.stem[:2]}_{widget_name(code[i].source)}": kept.index(i) for i in wanted}
    assert len(places) == len(wanted), f"two widgets of one name in {path.name}"
    return assemble([code[i].source for i in kept]), places


def widget_name(source: str) -> str:
    """What the cell's widget is called: the function that makes it."""
    return ([*re.findall(r"(\w*(?:stepper|explorer))\(", source), "widget"])[0]


def assemble(sources: Sequence[str]) -> nbformat.NotebookNode:
    """A notebook of code cells, none of them run."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


# --- a server


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab of its own on folder/notebooks, with no setting of the user's."""
    own = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
    own += ["JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"]
    for name, values in SETTINGS.items():
        file = folder / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(dumps(values), encoding="utf-8")
    (folder / "notebooks").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += ["--ServerApp.port=" + address.rpartition(":")[2], "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={folder / 'notebooks'}", "--IdentityProvider.token="]
    environment = os.environ | {name: str(folder / name) for name in own}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        while not answers(f"{address}/api/status"):
            assert server.poll() is None, (folder / "server.log").read_text(encoding="utf-8")
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def answers(url: str) -> bool:
    """Whether somebody is at home."""
    try:
        return urllib.request.urlopen(url, timeout=10).status == 200
    except urllib.error.URLError:
        return False


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
window.settled = box => idle() && heard > since && performance.now() - heard > 300 && !look(box).includes(null);
"""


def open_notebook(page: Page, address: str, name: str) -> None:
    """Open a notebook of the server and run all its cells; AssertionError if one raises."""
    page.add_init_script(SCRIPT)
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/lab/workspaces/{Path(name).stem}/tree/{name}")
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


class Toggles(Control):
    """A row of buttons of which one is down."""

    def places(self) -> list[int]:
        active = [button.evaluate("e => e.classList.contains('mod-active')") for button in self.buttons()]
        return sorted(range(len(active)), key=lambda i: not active[i])

    def buttons(self) -> list[ElementHandle]:
        return self.element.query_selector_all("button")

    def put(self, button: int) -> None:
        self.buttons()[button].click()


class Press(Control):
    """A button or a box to tick: all one can do is press it."""

    def places(self) -> list[None]:
        return [None, None]

    def put(self, place: None) -> None:
        self.element.click()


KINDS = {
    ".noUi-handle": Slider,
    "select": Menu,
    ".widget-toggle-buttons": Toggles,
    ".widget-button, .widget-play button:first-child, input[type=checkbox]": Press,
}
UNKNOWN = "input:not([type=checkbox]), textarea, button:not(.widget-button, .widget-toggle-buttons *, .widget-play *)"


def drive(page: Page, box: ElementHandle) -> int:
    """Move every control of a widget that is not disabled, and back; how many there were.

    AssertionError if there is none, if one changes neither picture nor readout, or if the kernel complains.
    """
    page.evaluate("complaints.length = 0")
    assert not box.query_selector_all(UNKNOWN), "a control that nobody knows how to move"
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
    page.wait_for_function("box => settled(box)", arg=box)
    complaints = page.evaluate("complaints")
    assert not complaints, "\n".join(complaints)
    return page.evaluate("box => look(box).join() !== before", box)


def photograph(page: Page, box: ElementHandle, file: Path) -> None:
    """A picture of the page with the widget at its top, the last slider moved."""
    for handle in box.query_selector_all(".noUi-target:not([disabled]) .noUi-handle")[-1:]:
        moves(Slider(page, handle), box, 0.8)
    box.evaluate("e => e.scrollIntoView()")
    page.screenshot(path=file)
