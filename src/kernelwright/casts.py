"""What autocast does to the operands of each operator, as operators of the graph.

In: an exported program, traced while autocast was on, and for whom. Out: the same program with the
casts in it, so that it means the same without autocast; regions with another setting, which torch
exports as a graph inside of the graph, stand among the other nodes. The one idea: nobody needs to
know torch's lists. Each operator is called once more on fake tensors with autocast on, and what it
casts first is seen by whoever stands below.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.calls import Autocast, ambient

TO = torch.ops.aten.to.dtype
REGIONS = ("wrap_with_autocast", "wrap_with_set_grad_enabled")


def explicit(program: Any, autocast: Autocast | None) -> Any:
    """The program with all casts as nodes."""
    module = program.graph_module
    regions = [n for n in module.graph.nodes if _is_region(n)]
    if autocast is None and not regions:
        return program
    for node in list(module.graph.nodes):
        _cast(module, node, autocast)
    module.graph.eliminate_dead_code()
    module.recompile()
    return program


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and _name(node) in REGIONS


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))


def _cast(module: fx.GraphModule, node: fx.Node, autocast: Autocast | None) -> None:
    if _is_region(node):
        _inline(module, node, autocast)
    elif isinstance(node.target, torch._ops.OpOverload) and autocast is not None:
        for operand, dtype in _casts_of(node, autocast):
            with node.graph.inserting_before(node):
                cast = node.graph.call_function(TO, (operand, dtype))
            cast.meta = {**node.meta, "val": operand.meta["val"].to(dtype)}
            node.replace_input_with(operand, cast)


def _inline(module: fx.GraphModule, region: fx.Node, setting: Autocast | None) -> None:
    """The nodes of a region in its place, each with the casts of its own setting.

    What gradients flow to has been seen elsewhere.
    """
    at = next(i for i, x in enumerate(region.args) if isinstance(x, fx.Node))
    body, *operands = region.args[at:]
    assert isinstance(body, fx.Node)
    inner: Any = module.get_submodule(str(body.target))
    if _name(region) == REGIONS[0]:
        device, dtype, enabled = map(region.args.__getitem__, range(3))
        chosen: Any = dtype or torch.get_autocast_dtype(str(device))
        setting = Autocast(str(device), chosen) if enabled else None
    known: dict[fx.Node, Any] = dict(
        zip(inner.graph.find_nodes(op="placeholder"), operands, strict=True)
    )
    made = []
    with region.graph.inserting_before(region):
        for node in inner.graph.nodes:
            if node.op == "output":
                results = pytree.tree_map_only(fx.Node, known.__getitem__, node.args[0])
            elif node.op != "placeholder":
                known[node] = new = region.graph.node_copy(node, known.__getitem__)
                if node.op == "get_attr":
                    name = f"{body.target}_{node.target}"
                    module.add_submodule(name, inner.get_submodule(node.target))
                    new.target = name
                made.append(new)
    for user in list(region.users):
        index = user.args[1]
        user.replace_all_uses_with(results[index])
        region.graph.erase_node(user)
    region.graph.erase_node(region)
    for node in made:
        _cast(module, node, setting)


def _casts_of(node: fx.Node, autocast: Autocast) -> list[tuple[fx.Node, torch.dtype]]:
    """The operands that autocast casts for an operator, and to what."""
    operands: list[fx.Node] = node.all_input_nodes
    values = {id(n.meta.get("val")): n for n in operands}
    if not any(isinstance(n.meta.get("val"), FakeTensor) for n in operands):
        return []
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    mode = next(v.fake_mode for n in operands if isinstance(v := n.meta.get("val"), FakeTensor))
    seen = _Casts(set(values))
    with ambient(autocast), mode, seen, contextlib.suppress(_Enough):
        assert callable(node.target)
        node.target(*args, **kwargs)
    return [(values[number], dtype) for number, dtype in seen.found.items()]


class _Enough(Exception):
    """The operator itself begins, behind its casts."""


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The casts of these tensors that come first."""

    def __init__(self, values: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values
        self.found: dict[int, torch.dtype] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype: Any = (kwargs or {}).get("dtype")
        if func is torch.ops.prim.device.default:
            return func(*args)
        casts = func is torch.ops.aten._to_copy.default and dtype is not None
        if not casts or id(args[0]) not in self.values:
            raise _Enough
        self.found[id(args[0])] = dtype
        return func(*args, **kwargs)
