"""The Python of ModelNew.forward: guards first, then one statement or two for each region."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from kernelwright.emit import values
from kernelwright.emit.arguments import GLOBALS, Arguments, Leaf
from kernelwright.emit.epilogue import SPLIT_OPERANDS
from kernelwright.emit.few import few_steps
from kernelwright.emit.lines import listed
from kernelwright.emit.products import product_steps
from kernelwright.emit.values import python
from kernelwright.expr import leaves
from kernelwright.graph import SOURCES, Call, Dim, Node, Ref, Scalar, View, as_dim, hint, refs
from kernelwright.lower import Kernel, Panel
from kernelwright.places import is_place, look_up
from kernelwright.plan import Buffer, Plan, Region
from kernelwright.problem import Problem
from kernelwright.scalars import as_python

FRIENDLY = {
    "torch.ops.aten.linear.default": "torch.nn.functional.linear",
    "torch.ops.aten.mm.default": "torch.mm",
    "torch.ops.aten.bmm.default": "torch.bmm",
    "torch.ops.aten.matmul.default": "torch.matmul",
    **{f"torch.ops.aten.conv{n}d.default": f"torch.nn.functional.conv{n}d" for n in (1, 2, 3)},
    "torch.ops.aten.conv_transpose1d.default": "torch.nn.functional.conv_transpose1d",
    "torch.ops.aten.conv_transpose2d.input": "torch.nn.functional.conv_transpose2d",
    "torch.ops.aten.conv_transpose3d.input": "torch.nn.functional.conv_transpose3d",
}


CHANNELS_LAST = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
MANY_BUFFERS = 4
OWN = ("memo", "state", "cause", "module", "panel", "start", "stop", "outputs", "frozen")
LOCALS = (*OWN, *SPLIT_OPERANDS)
BIJECTIVE = ("reshape", "permute")


@dataclass(frozen=True)
class Result:
    """A value that the kernels hand back; `leaf` is the output that it becomes, if any.

    `name` is a value of the graph. An output that is a mere regrouping of it is made outside of
    autograd's function, since torch forbids writing in place to views that were made inside.
    """

    name: str
    leaf: int | None


class ForwardWriter:
    """Prints the functions of one plan."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        kernels: tuple[Kernel, ...],
        panels: tuple[Panel, ...],
        device: str,
        names: Mapping[type, str],
    ) -> None:
        self.problem = problem
        self.names = names
        self.device = device
        self.plan = plan
        self.graph = plan.graph
        self.kernels = {k.name: k for k in kernels}
        self.panels = {p.product: p for p in panels}
        self.arguments = Arguments(problem, names)
        self.leaves = self._bind()
        self.inputs = {name: leaf.name for name, leaf in self.leaves.items()}
        self.local = self._locals()
        self.first = next(n.name for n in self.graph if n.op == "input")
        self.known: dict[str, str] = {}
        self.results = self._results()

    def _locals(self) -> dict[str, str]:
        """The names of emitted locals, out of the way of forward's own parameters."""
        taken = set(self.arguments.taken)
        chosen: dict[str, str] = {}
        for word in (*LOCALS, *self.graph.symbols):
            chosen[word] = word
            while chosen[word] in taken:
                chosen[word] += "_"
        return chosen

    def _bind(self) -> dict[str, Leaf]:
        """Graph input -> the leaf of the arguments that it is."""
        tensors = [n.name for n in self.graph if n.op == "input"]
        order = {id(x): i for i, x in enumerate(self.problem.tensors)}
        leaves = sorted(self.arguments.tensors, key=lambda leaf: order[id(leaf.value)])
        return dict(zip(tensors, leaves, strict=True))

    # ---- what the kernels cover ------------------------------------------------------------

    def outside(self) -> list[str]:
        """The function that says why a call is outside of what the kernels cover."""
        state = self.local["state"]
        lines = [
            f"def outside({', '.join([state, *self.arguments.inside.values()])}):",
            '    """Why the kernels cannot take this call, or None when they can."""',
            f"    {self.local['cause']} = transformed({python(self._untraceable())})",
            f"    if {self.local['cause']} is not None:",
            f"        return {self.local['cause']}",
        ]
        for test, cause in self.arguments.checks:
            lines += _when(test, cause)
        for name, leaf in self.leaves.items():
            lines += self._input_checks(self.graph[name], leaf.place)
        lines += self._symbol_checks()
        first = self.leaves[self.first].place
        if self.state():
            lines += [
                f"    for tensor, (dtype, shape, device) in zip({state}, STATE_TYPES):",
                "        if tensor.dtype != dtype or tensor.shape != shape:",
                '            return "a parameter has another type or shape"',
                f"        if tensor.device != {first}.device and tensor.device.type != device:",
                '            return "a parameter is on another device"',
            ]
        lines += _when(f'torch.is_autocast_enabled("{self.device}")', "autocast is on")
        return [*lines, "    return None"]

    def _untraceable(self) -> str | None:
        if self.graph.contract.random:
            return "random numbers are traced"
        return "an argument is traced that is no tensor" if self.arguments.constants else None

    def _input_checks(self, node: Node, name: str) -> list[str]:
        shape, device = node.type.shape, self.device
        lines = _when(f"not is_ordinary({name})", f"{name} is not a plain tensor")
        lines += _when(f'{name}.device.type != "{device}"', f"{name} is not on a {device} device")
        lines += _when(
            f"{name}.dtype != {node.type.dtype}", f"{name} is not {str(node.type.dtype)[6:]}"
        )
        fixed = {i: d for i, d in enumerate(shape) if isinstance(d, int)}
        tests = [f"{name}.ndim != {len(shape)}"]
        start = 0 if 0 in fixed else 1
        if len(fixed) == len(shape) - start and fixed:
            sizes = tuple(fixed[i] for i in range(start, len(shape)))
            tests.append(
                f"{name}.shape[{start}:] != {sizes}" if start else f"{name}.shape != {sizes}"
            )
        else:
            tests += [f"{name}.shape[{i}] != {d}" for i, d in fixed.items()]
        wanted = " x ".join(str(d) for d in shape)
        lines += _when(" or ".join(tests), f"{name} is not of shape {wanted}")
        if len(shape) in CHANNELS_LAST:
            # Eager keeps that order in its result, and the library has kernels for it.
            order = f"memory_format={CHANNELS_LAST[len(shape)]}"
            other = f"not {name}.is_contiguous() and {name}.is_contiguous({order})"
            lines += _when(other, f"{name} is in channels_last order")
        if node.name in self.graph.contract.follows:
            lines += _when(
                f"not in_order({name})", f"the result would lie in memory as {name} does"
            )
        return lines

    def _symbol_checks(self) -> list[str]:
        """Sizes that must agree, what the trace asked of them, and enough for a statistic."""
        lines: list[str] = []
        for node in self.graph:
            for axis, size in enumerate(node.type.shape if node.op == "input" else ()):
                if isinstance(size, int) or self.graph.symbols.get(str(size)) == (node.name, axis):
                    continue
                place = f"{self.leaves[node.name].place}.shape[{axis}]"
                lines += _when(
                    f"{place} != {self.size(size, inline=True)}", "the inputs differ in batch size"
                )
        for guard in self.graph.contract.guards:
            test = PythonPrinter().doprint(guard.test)
            where = f" ({guard.place})" if guard.place else ""
            lines += _when(f"not ({self._inline(test)})", f"compiled for {test}{where}")
        for symbol, fewest in self.fewest().items():
            lines += _when(
                f"{self.symbol(symbol, inline=True)} < {fewest}", "too few samples for a statistic"
            )
        return lines

    def fewest(self) -> dict[str, int]:
        """The smallest batch for kernels that reduce over it: none of their divisors may vanish."""
        found: dict[str, int] = {}
        for kernel in self.kernels.values():
            program = kernel.program
            for atom in program.elements if program.stages else ():
                size = program.sizes[atom]
                for symbol in () if isinstance(size, int) else size.free_symbols:
                    divisors = [leaf.value for e in program.exprs for leaf in leaves(e, "size")]
                    vanishes = any(hint(d, batch=1) <= 0 for d in divisors)
                    found[str(symbol)] = max(found.get(str(symbol), 1), 2 if vanishes else 1)
        return found

    def state(self) -> list[Node]:
        """The parameters and buffers that the forward reads, or that gradients flow to."""
        return self._state

    @cached_property
    def _state(self) -> list[Node]:
        bases = {self.graph.base(r) for region in self.plan.regions for r in region.reads}
        bases |= {self.graph.base(r) for r in self.graph.results}
        bases |= {name for of in self.graph.contract.reaches or () for name in of}
        return [n for n in self.graph if n.op in ("parameter", "buffer") and n.name in bases]

    def on_host(self) -> list[Node]:
        """Tensors that no .to() moves: attributes and globals that lie on the CPU beside a GPU."""
        if self.device == "cpu":
            return []
        places = {n.name: self.graph.targets[n.name] for n in self.state()}
        loose = [n for n in self.state() if is_place(places[n.name])]
        module = self.problem.module
        return [n for n in loose if look_up(module, places[n.name]).device.type == "cpu"]

    def reads_globals(self) -> bool:
        return any("__globals__" in self.graph.targets[n.name] for n in self.state())

    def state_types(self) -> list[str]:
        """The table that outside() compares the state with."""
        if not self.state():
            return []
        lines = ["STATE_TYPES = ("]
        for n in self.state():
            shape = tuple(int(str(d)) for d in n.type.shape)
            where = "cpu" if n in self.on_host() else None
            row = f"({n.type.dtype}, {shape}, {python(where)})"
            lines.append(f"    {row},  # {self.graph.targets[n.name].removeprefix('{}.')}")
        return [*lines, ")"]

    def state_reader(self) -> list[str]:
        lines = [f"def state({self.local['module']}):"]
        lines.append(
            '    """The parameters and buffers that a call reads, in one order for all."""'
        )
        names = [self.attribute(self.graph.targets[n.name]) for n in self.state()]
        return [*lines, *listed("    ", "return (", names, ")", margin=0)]

    def written_reader(self) -> list[str]:
        lines = [f"def written({self.local['module']}):"]
        lines.append('    """The buffers that a call changes."""')
        names = [self.attribute(target) for target, _ in self.graph.mutations]
        return [*lines, *listed("    ", "return (", names, ")", margin=0)]

    # ---- results -----------------------------------------------------------------------------

    def _results(self) -> list[Result]:
        """What the kernels hand back: outputs, elements that are numbers, new values of buffers."""
        found: dict[str, Result] = {}
        leaves = pytree.tree_leaves(self.graph.outputs)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Ref) and self.graph[self.graph.base(leaf.name)].op not in SOURCES:
                name = self._regrouped(leaf.name)
                found.setdefault(name, Result(name, i))
        for name in refs([leaf for leaf in leaves if isinstance(leaf, Scalar)]):
            if self.graph[self.graph.base(name)].op not in SOURCES:
                found.setdefault(name, Result(name, None))
        return [*found.values(), *(Result(value, None) for _, value in self.graph.mutations)]

    def _regrouped(self, name: str) -> str:
        """What an output is a regrouping of: reshapes and permutations can be undone."""
        while self.graph[name].op == "view":
            view = self.graph[name].payload
            assert isinstance(view, View)
            if view.kind not in BIJECTIVE:
                return name
            name = self.graph[name].inputs[0]
        return name

    def _undone(self, name: str, text: str) -> str:
        """The expression for a result, given one for the output that is a regrouping of it."""
        while self.graph[name].op == "view":
            node, view = self.graph[name], self.graph[name].payload
            assert isinstance(view, View)
            if view.kind not in BIJECTIVE:
                return text
            inner = self.graph[node.inputs[0]]
            if view.kind == "permute":
                back = [view.dims.index(i) for i in range(len(view.dims))]
                text = f"{text}.permute({', '.join(map(str, back))})"
            elif node.type.shape != inner.type.shape:
                text = f"{text}.reshape({self.tuple_of(inner.type.shape)})"
            name = inner.name
        return text

    def reaches(self) -> list[tuple[int, ...]]:
        """For each result, the positions among inputs and state that its gradient flows to."""
        order = [*self.leaves, *(n.name for n in self.state())]
        known = self.graph.contract.reaches
        rows = []
        for result in self.results:
            sources = set(order)
            if known is not None and result.leaf is not None:
                sources = set(known[result.leaf])
            floating = self.graph[result.name].type.dtype.is_floating_point
            if result.leaf is None or not floating:
                sources = set()
            rows.append(tuple(i for i, name in enumerate(order) if name in sources))
        return rows

    def rewritten(self) -> tuple[list[int], list[int]]:
        """Positions of buffers that a call rewrites, and of those that outputs depend on."""
        order = [*self.leaves, *(n.name for n in self.state())]
        targets = {target for target, _ in self.graph.mutations}
        found = [i for i, n in enumerate(order) if self.graph.targets.get(n) in targets]
        needed = self._behind([r.name for r in self.results if r.leaf is not None])
        return found, [i for i in found if order[i] in needed]

    def _behind(self, names: list[str]) -> set[str]:
        """Every value that these are computed from."""
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name not in seen:
                seen.add(name)
                names += self.graph[name].inputs
        return seen

    # ---- the functions -----------------------------------------------------------------------

    def parameters(self) -> list[str]:
        return [*self.inputs.values(), *(self.variable(n.name) for n in self.state())]

    def sized(self) -> list[str]:
        return [f"    {self.local[s]} = {self.symbol(s)}" for s in self.graph.symbols]

    def fused(self) -> list[str]:
        """The kernels, one after another."""
        inside = listed("", "def fused(", [self.local["memo"], *self.parameters()], "):", margin=0)
        lines = [*inside, '    """The kernels: inputs and state in, results out."""', *self.sized()]
        for node in self.on_host() if self.problem.device.type != "cpu" else ():
            name = self.variable(node.name)
            lines.append(f"    {name} = {name}.to({self.device_of()})")
        by_name = {r.name: r for r in self.plan.regions}
        paired = {p.kernel for p in self.panels.values()}
        for region in self.plan.regions:
            if region.gemm is not None:
                steps = product_steps(self, region, region.gemm)
            elif region.name in self.panels:
                panel = self.panels[region.name]
                steps = self.panel(region, by_name[panel.kernel], panel.rows)
            else:
                steps = [] if region.name in paired else self.step(region)
            lines += [f"    {line}" for line in steps]
        return [*lines, *listed("    ", "return (", self._handed_back(), ")", margin=0)]

    def _handed_back(self) -> list[str]:
        """Values of the results; the caller may not be handed the same tensor twice."""
        texts: list[str] = []
        for result in self.results:
            text = self.value(result.name)
            base = self.graph[self.graph.base(result.name)].op
            again = text in texts or (result.leaf is None and base in SOURCES)
            texts.append(f"{text}.clone()" if again else text)
        return texts

    def blank(self) -> list[str]:
        inside = listed("", "def blank(", self.parameters(), "):", margin=0)
        lines = [*inside, '    """Results without values, for tracers."""', *self.sized()]
        made = []
        for result in self.results:
            type = self.graph[result.name].type
            shape, device = self.tuple_of(type.shape), self.device_of()
            made.append(f"torch.empty({shape}, dtype={type.dtype}, device={device})")
        return [*lines, *listed("    ", "return (", made, ")", margin=0)]

    def original(self) -> list[str]:
        """The user's own forward on the same tensors, its outputs as the results that they are."""
        module, outputs = self.local["module"], self.local["outputs"]
        names = [*self.inputs.values(), *(leaf.name for leaf in self.arguments.constants)]
        called = ", ".join([module, *self.arguments.rebuilt])
        lines = listed("", "def original(", [module, *names], "):", margin=0)
        lines.append('    """What fused() computes, by the original forward."""')
        places = [place for place, _ in values.leaves(self.graph.outputs, outputs)]
        made = []
        for result in self.results:
            if result.leaf is not None:
                leaf = pytree.tree_leaves(self.graph.outputs)[result.leaf]
                made.append(self._undone(leaf.name, places[result.leaf]))
        needed = [local for local in self.sized() if _mentions(made, local.split()[0])]
        lines += [*needed, f"    {outputs} = Model.forward({called})"]
        return [*lines, *listed("    ", "return (", made, ")", margin=0)]

    def forward(self) -> list[str]:
        """ModelNew.forward: the way that a call takes."""
        memo, cause = self.local["memo"], self.local["cause"]
        handed = ", ".join([f"{memo}.state", *self.arguments.inside])
        given = _tuple([leaf.given for leaf in self.leaves.values()])
        kept = [leaf.given for leaf in self.arguments.constants]
        called = ", ".join([memo, given, *([_tuple(kept)] if kept else [])])
        names = [self.variable(r.name) for r in self.results]
        lines = [
            f"    def forward({', '.join(filter(None, ['self', self.arguments.printed()]))}):",
            f"        {memo} = FUSION.memo(self)",
            f"        {cause} = {memo}.cause or outside({handed})",
            f"        if {cause} is not None:",
            f"            {memo}.fall_back({cause})",
            f"            return {self._original_forward()}",
            *self.sized_in_forward(),
            *listed("        ", "(", names, f") = FUSION.run({called})", margin=0),
        ]
        lines += self._written_buffers()
        return [*lines, f"        return {self.assembled()}"]

    def _written_buffers(self) -> list[str]:
        """New values of buffers; many of one type, as BatchNorms leave them, go in one launch."""
        values = self.results[len(self.results) - len(self.graph.mutations) :]
        by_type: dict[Any, list[tuple[str, str]]] = {}
        for (target, name), value in zip(self.graph.mutations, values, strict=True):
            pair = self.attribute(target, "self"), self.variable(value.name)
            by_type.setdefault(self.graph[name].type.dtype, []).append(pair)
        lines = []
        for pairs in by_type.values():
            if len(pairs) < MANY_BUFFERS:
                lines += [f"        {buffer}.copy_({value})" for buffer, value in pairs]
                continue
            buffers, news = ([pair[i] for pair in pairs] for i in (0, 1))
            lines.append("        torch._foreach_copy_(")
            lines += listed("            ", "[", buffers, "],", margin=0)
            lines += listed("            ", "[", news, "],", margin=0)
            lines.append("        )")
        return lines

    def _original_forward(self) -> str:
        if "super" in self.arguments.inside:
            return f"Model.forward(self, {self.arguments.handed_on()})"
        return f"super().forward({self.arguments.handed_on()})"

    def sized_in_forward(self) -> list[str]:
        """Sizes, if a view of a result needs them."""
        text = self.assembled()
        return [
            f"        {local} = {self._given_size(symbol)}"
            for symbol, local in self.local.items()
            if symbol in self.graph.symbols and _mentions([text], local)
        ]

    def _given_size(self, symbol: str) -> str:
        name, axis = self.graph.symbols[symbol]
        return f"{self.leaves[name].given}.shape[{axis}]"

    def assembled(self) -> str:
        """The outputs, of results and of views of what came in."""
        order = [n.name for n in self.state()]
        self.known = {name: leaf.given for name, leaf in self.leaves.items()}
        self.known |= {n: f"{self.local['memo']}.state[{i}]" for i, n in enumerate(order)}
        text = self.literal(self.graph.outputs)
        self.known = {}
        return text

    def step(self, region: Region) -> list[str]:
        if region.program is not None:
            return self.launch(region)
        assert region.call is not None
        target = self.variable(region.outputs[0].name)
        text = f"{target} = {self.call(region.call)}"
        if region.kind != "contract" or self.device != "cuda":
            return [text]
        steps = ["with _Precision():", f"    {text}"]
        return few_steps(self, region, steps) if region.few else steps

    def launch(self, region: Region) -> list[str]:
        return [
            *self.allocate(region.outputs),
            *self.launch_on(region.name, self.operands(region.name), self.sizes()),
        ]

    def operands(self, kernel: str) -> list[str]:
        """Tensors in the order of the kernel's Args: what it reads, then what it writes."""
        reads, writes = self.kernels[kernel].reads, self.kernels[kernel].writes
        return [*map(self.value, reads), *map(self.variable, writes)]

    def sizes(self) -> list[str]:
        return [self.local[s] for s in self.graph.symbols]

    def device_of(self) -> str:
        """Where a call runs, in functions of tensors and in forward itself."""
        return f"{self.known.get(self.first, self.inputs[self.first])}.device"

    def allocate(self, buffers: tuple[Buffer, ...]) -> list[str]:
        return [self.empty(self.variable(b.name), self.tuple_of(b.shape), b.dtype) for b in buffers]

    def empty(self, name: str, shape: str, dtype: torch.dtype) -> str:
        return f"{name} = torch.empty({shape}, dtype={dtype}, device={self.device_of()})"

    def launch_on(self, kernel: str, tensors: list[str], sizes: list[str]) -> list[str]:
        return [
            "_launch(",
            f'    "{kernel}",',
            f"    {self.device_of()},",
            *listed("    ", "[", tensors, "],"),
            *(f"    {s}," for s in sizes),
            ")",
        ]

    def panel(self, product: Region, kernel: Region, rows: int) -> list[str]:
        """A library GEMM and its tail, a panel of rows at a time."""
        assert product.call is not None
        panel, start, stop = (self.local[w] for w in ("panel", "start", "stop"))
        (batch,) = (self.local[s] for s in self.graph.symbols)
        buffer = product.outputs[0]
        name = self.variable(buffer.name)
        left, weight = (self.value(r.name) for r in product.call.args[:2])
        tensors = [panel if r == buffer.name else self.value(r) for r in kernel.reads]
        tensors += [f"{self.variable(b.name)}[{start}:{stop}]" for b in kernel.outputs]
        shape = f"(min({batch}, {rows}), {buffer.shape[1]})"
        loop = [
            f"{stop} = min({start} + {rows}, {batch})",
            f"{panel} = {name}[: {stop} - {start}]",
            f"torch.mm({left}[{start}:{stop}], {weight}.t(), out={panel})",
            *self.launch_on(kernel.name, tensors, [f"{stop} - {start}"]),
        ]
        return [
            *self.allocate(kernel.outputs),
            self.empty(name, shape, buffer.dtype),
            f"for {start} in range(0, {batch}, {rows}):",
            *(f"    {line}" for line in loop),
        ]

    def call(self, call: Call) -> str:
        if call.target == "getitem":
            source, index = call.args
            return f"{self.value(source.name)}[{index}]"
        args = list(call.args)
        target = FRIENDLY.get(call.target, call.target)
        while target.startswith("torch.nn") and args and args[-1] is None:
            args.pop()
        inside = [self.literal(a) for a in args]
        inside += [f"{k}={self.literal(v)}" for k, v in call.kwargs]
        return f"{target}({', '.join(inside)})"

    # ---- names and values ------------------------------------------------------------------

    def value(self, name: str) -> str:
        """A Python expression for a graph value: a variable, an attribute, or a view of one."""
        if name not in self.graph.by_name:
            return self.variable(name)
        node = self.graph[name]
        if name in self.known:
            return self.known[name]
        if any(name == r.name for r in self.results) and self.known:
            return self.variable(name)
        if node.op == "input":
            return self.inputs[name]
        if node.op == "constant":
            return f"_on(_{name}, {self.inputs[self.first]}.device)"
        if node.op != "view":
            return self.variable(name)
        view, inner = node.payload, self.value(node.inputs[0])
        assert isinstance(view, View)
        if node.type.shape == self.graph[node.inputs[0]].type.shape and view.kind != "permute":
            return inner
        if view.kind == "permute":
            return f"{inner}.permute({', '.join(str(d) for d in view.dims)})"
        if view.kind == "slice":
            return f"{inner}[{self.taken(node, view)}]"
        method = "expand" if view.kind == "expand" else "reshape"
        return f"{inner}.{method}({self.tuple_of(node.type.shape)})"

    def taken(self, node: Node, view: View) -> str:
        """What stands between the brackets of a slice: `:, 3:9:2`."""
        axis = view.dims[0]
        count, size = node.type.shape[axis], self.graph[node.inputs[0]].type.shape[axis]
        stop = as_dim(view.start + view.step * (count - 1) + 1) if count != 0 else view.start
        places = [
            self.size(view.start) if view.start != 0 else "",
            self.size(stop) if stop != size else "",
        ]
        if view.step != 1:
            places.append(str(view.step))
        return ", ".join([*(":" for _ in range(axis)), ":".join(places)])

    def variable(self, name: str) -> str:
        """A buffer is called after the captured value that is a plain view of it, if any."""
        users = [self.graph[u] for u in self.graph.users.get(name, ())]
        same = [u for u in users if u.op == "view" and u.sources == self.graph[name].sources]
        wish = same[0].name if len(same) == 1 else name
        taken = {"self", *GLOBALS, *self.arguments.taken, *self.local.values()}
        if name in self.graph.by_name and self.graph[name].op in SOURCES:
            wish = name
        return f"{wish}_" if wish in taken else wish

    def attribute(self, target: str, owner: str | None = None) -> str:
        """`module.net[0].weight`: the user's own way to write where a tensor lives."""
        text = owner or self.local["module"]
        if is_place(target):
            return target.replace("{}", text)
        *parents, last = target.split(".")
        for part in parents:
            plain = part.isidentifier() and not keyword.iskeyword(part)
            text = f"{text}.{part}" if plain else f"{text}._modules[{python(part)}]"
        plain = last.isidentifier() and not keyword.iskeyword(last)
        return f"{text}.{last}" if plain else f"getattr({text}, {python(last)})"

    def symbol(self, symbol: str, inline: bool = False) -> str:
        """Where a free size is read: in a function of tensors, or `inline` in outside()."""
        name, axis = self.graph.symbols[symbol]
        return f"{self.leaves[name].place if inline else self.inputs[name]}.shape[{axis}]"

    def size(self, dim: Dim, inline: bool = False) -> str:
        """A size as Python: over the emitted locals, or `inline` over the inputs themselves."""
        return self._inline(str(dim)) if inline else self._renamed(str(dim), self.local)

    def _inline(self, text: str) -> str:
        return self._renamed(text, {s: self.symbol(s, inline=True) for s in self.graph.symbols})

    def _renamed(self, text: str, names: Mapping[str, str]) -> str:
        for symbol in self.graph.symbols:
            text = re.sub(rf"\b{symbol}\b", names[symbol], text)
        return text

    def tuple_of(self, shape: tuple[Dim, ...]) -> str:
        inside = ", ".join(self.size(d) for d in shape)
        return f"({inside},)" if len(shape) == 1 else f"({inside})"

    def literal(self, value: Any) -> str:
        """A Python literal of nested arguments with Refs and sizes."""
        return values.rebuild(value, self._known, self.names)

    def _known(self, value: Any) -> str | None:
        if isinstance(value, Ref):
            return self.value(value.name)
        if isinstance(value, Scalar):
            items = {symbol: f"{self.value(ref.name)}.item()" for symbol, ref in value.items}
            return as_python(value.expr, {s: self.local[s] for s in self.graph.symbols} | items)
        if isinstance(value, torch.device):
            return self.device_of()
        return self.size(value) if isinstance(value, sympy.Expr) else None


def _mentions(texts: list[str], name: str) -> bool:
    return any(re.search(rf"\b{name}\b", text) for text in texts)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _when(test: str, cause: str) -> list[str]:
    return [f"    if {test}:", f"        return {python(cause)}"]
