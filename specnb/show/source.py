"""``source(obj)``: the code that runs, displayed beside the paper's pseudo-code."""

import ast
import inspect
import textwrap

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer


def code(obj) -> str:
    """The source of a function, class or method without its docstring, at the left margin."""
    text = textwrap.dedent(inspect.getsource(obj))
    lines = text.splitlines()
    (definition,) = ast.parse(text).body
    if ast.get_docstring(definition, clean=False) is not None:
        docstring = definition.body[0]
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return "\n".join(lines).strip("\n")


class source:
    """The source of a function or class, without docstring: highlighted in a notebook, plain in a terminal."""

    def __init__(self, obj):
        self.text = code(obj)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        formatter = HtmlFormatter(noclasses=True, cssstyles="font-size:15px")
        return highlight(self.text, PythonLexer(), formatter)
