"""A torch.fx.GraphModule is taken for what its code says: a class of its own, with that as source.

In: a module. Out: the same, or for a GraphModule an instance of a plain class over its very tensors
and parts. torch makes the class of a GraphModule while the program runs, so there is no text of it;
its forward is text all the same.
"""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch.fx.graph import CodeGen

TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
CLASS = '''{forward}


class {name}(torch.nn.Module):
    """The forward of a torch.fx.GraphModule, over what another module holds."""

    def __init__(self, root):
        super().__init__()
        for table in {tables}:
            getattr(self, table).update(getattr(root, table))

    forward = forward_of_graph
'''
DEF = "def forward("
Place = tuple[str, str, int]  # a module in the model, a file, and a line in it
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
ROOT = re.compile(r"^\w+\[[^\]]*\](\.|$)")  # what Dynamo calls the model that it found
origins: dict[tuple[str, int], Place] = {}  # by lines of the texts that are made here
HOME = "kernelwright_made"  # how the modules of classes that are made here are called
_numbers = itertools.count()


def written(module: nn.Module) -> nn.Module:
    """The module, as an instance of a class that can be written down."""
    if not isinstance(module, fx.GraphModule) or type(module.graph._codegen) is not CodeGen:
        return module
    kind = _class(module)
    made: nn.Module = kind.__new__(kind)
    nn.Module.__init__(made)
    foreign = vars(fx.GraphModule(nn.Module(), fx.Graph())).keys() - vars(made).keys()
    made.__dict__.update({k: v for k, v in vars(module).items() if k not in foreign})
    return made


def _class(module: fx.GraphModule) -> type[nn.Module]:
    code = module.graph.python_code("self")
    # Outside of the class, where no name in it is a private one.
    forward = code.src[code.src.index(DEF) :].rstrip().replace(DEF, "def forward_of_graph(", 1)
    name = type(module).__name__
    made = defined(CLASS.format(name=name, tables=TABLES, forward=forward), name, code.globals)
    # While it traces, torch notes the lines of functions called forward, and of those it is told.
    note = getattr(fx.proxy, "_register_stack_trace_anchor", None)
    if note is not None:
        note(made.forward)
    nodes, file = list(module.graph.nodes), f"<{made.__module__}>"
    for line, at in (code._lineno_map or {}).items():
        if at is not None and (origin := origin_of(nodes[at])) is not None:
            origins[file, line + 1] = origin  # behind the line of the def
    return made


def origin_of(node: fx.Node) -> Place | None:
    """The module, the file and the line that a node of Dynamo's comes from."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    file, line = frames[-1]
    return ROOT.sub("", str(modules[-1][0])) if modules else "", file, int(line)


def defined(text: str, name: str, space: Mapping[str, Any]) -> type[nn.Module]:
    """The class that a text defines, which inspect finds there; `space` are names it uses."""
    home = types.ModuleType(f"{HOME}_{next(_numbers)}")
    file = f"<{home.__name__}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    sys.modules[home.__name__] = home
    vars(home).update(space)
    exec(compile(text, file, "exec", dont_inherit=True), vars(home))
    made: type[nn.Module] = vars(home)[name]
    return made
