"""A torch.fx.GraphModule is taken for what its code says: a class of its own, with that as source.

In: a module. Out: the same, or for a GraphModule an instance of a plain class over its very tensors
and parts. torch makes the class of a GraphModule while the program runs, so there is no text of it;
its forward is text all the same.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import types
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


def _class(module: fx.GraphModule) -> Any:
    code = module.graph.python_code("self")
    name = type(module).__name__
    # Outside of the class, where no name in it is a private one.
    forward = code.src[code.src.index(DEF) :].rstrip().replace(DEF, "def forward_of_graph(", 1)
    text = CLASS.format(name=name, tables=TABLES, forward=forward)
    space = types.ModuleType(f"kernelwright_graph_{next(_numbers)}")
    file = f"<{space.__name__}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    sys.modules[space.__name__] = space
    vars(space).update(code.globals)
    exec(compile(text, file, "exec", dont_inherit=True), vars(space))
    return vars(space)[name]
