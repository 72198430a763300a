"""The Python of ModelNew.forward: guards first, then one statement or two for each region."""

from __future__ import annotations

import inspect
import re
from typing import Any

import sympy
import torch
from torch import nn

from kernelwright.emit.epilogue import SPLIT_OPERANDS
from kernelwright.emit.few import few_steps
from kernelwright.emit.lines import listed
from kernelwright.emit.products import product_steps
from kernelwright.expr import leaves
from kernelwright.graph import SOURCES, Call, Dim, Node, Ref, Scalar, View, as_dim, hint
from kernelwright.lower import Kernel, Panel
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


INDEXED = (nn.Sequential, nn.ModuleList, nn.ParameterList)
CHANNELS_LAST = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
LOCALS = ("state", "cause", "panel", "start", "stop", *SPLIT_OPERANDS, "frozen")


class ForwardWriter:
    """Prints the guard and the forward of one plan."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        kernels: tuple[Kernel, ...],
        panels: tuple[Panel, ...],
        device: str,
    ) -> None:
        self.problem = problem
        self.device = device
        self.plan = plan
        self.graph = plan.graph
        self.kernels = {k.name: k for k in kernels}
        self.panels = {p.product: p for p in panels}
        signature = inspect.signature(problem.module.forward)
        self.parameters = list(signature.parameters.values())
        self.inputs = self._bind(signature)
        self.local = self._locals()
        self.first = next(n.name for n in self.graph if n.op == "input")

    def _locals(self) -> dict[str, str]:
        """The names of emitted locals, out of the way of forward's own parameters."""
        taken = {p.name for p in self.parameters}
        chosen: dict[str, str] = {}
        for word in (*LOCALS, *self.graph.symbols):
            chosen[word] = word
            while chosen[word] in taken:
                chosen[word] += "_"
        return chosen

    def _bind(self, signature: inspect.Signature) -> dict[str, str]:
        """Graph input -> the Python name under which forward receives it."""
        tensors = [n.name for n in self.graph if n.op == "input"]
        bound = signature.bind(*self.problem.inputs)
        names: list[str] = []
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                names += [f"{name}[{i}]" for i in range(len(value))]
            else:
                names.append(name)
        flat = [
            n
            for n, v in zip(names, self.problem.inputs, strict=True)
            if isinstance(v, torch.Tensor)
        ]
        self.constants = {
            n: v
            for n, v in zip(names, self.problem.inputs, strict=True)
            if not isinstance(v, torch.Tensor)
        }
        return dict(zip(tensors, flat, strict=True))

    # ---- what the kernels cover ------------------------------------------------------------

    def signature(self) -> str:
        parts = []
        for p in self.parameters:
            text = _stars(p) + p.name
            if p.default is not inspect.Parameter.empty:
                text = f"{p.name}={p.default!r}"
            parts.append(text)
        return ", ".join(parts)

    def arguments(self) -> str:
        return ", ".join(_stars(p) + p.name for p in self.parameters)

    def outside(self) -> list[str]:
        """The method that says why a call is outside of what the kernels cover."""
        first = self.inputs[self.first]
        state = [self.local["state"]] if self.state() else []
        lines = [
            f"    def _outside({', '.join(['self', *state, self.signature()])}):",
            '        """Why the kernels cannot take this call, or None when they can."""',
        ]
        for name, value in self.constants.items():
            lines += _when(f"{name} != {value!r}", f"compiled for {name} = {value!r}")
        for graph_name, name in self.inputs.items():
            lines += self._input_checks(self.graph[graph_name], name)
        lines += self._symbol_checks()
        if self.state():
            lines += [
                f"        for tensor, (dtype, shape) in zip({state[0]}, self.state_types):",
                "            if tensor.dtype != dtype or tensor.shape != shape:",
                '                return "a parameter has another type or shape"',
                f"            if tensor.device != {first}.device:",
                '                return "a parameter is on another device"',
            ]
        if self.graph.mode != "any":
            mode = "training" if self.problem.training else "eval"
            test = "not self.training" if self.problem.training else "self.training"
            lines += _when(test, f"compiled for {mode} mode")
        lines += _when(f'torch.is_autocast_enabled("{self.device}")', "autocast is on")
        inputs = [f"{name}.requires_grad" for name in self.inputs.values()]
        needs = " or ".join([*inputs, "any(p.requires_grad for p in self.parameters())"])
        cause = "gradients are needed, and no backward was generated"
        lines += ["        if torch.is_grad_enabled():", f"            if {needs}:"]
        return [*lines, f'                return "{cause}"', "        return None"]

    def _input_checks(self, node: Node, name: str) -> list[str]:
        shape, device = node.type.shape, self.device
        lines = _when(f"not isinstance({name}, torch.Tensor)", f"{name} is not a tensor")
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
        return lines

    def _symbol_checks(self) -> list[str]:
        """Sizes that must agree, and a batch that a statistic over it can digest."""
        lines: list[str] = []
        for node in self.graph:
            for axis, size in enumerate(node.type.shape if node.op == "input" else ()):
                if isinstance(size, int) or self.graph.symbols.get(str(size)) == (node.name, axis):
                    continue
                place = f"{self.inputs[node.name]}.shape[{axis}]"
                lines += _when(
                    f"{place} != {self.size(size, inline=True)}", "the inputs differ in batch size"
                )
        for symbol, fewest in self.fewest().items():
            lines += _when(f"{self.symbol(symbol)} < {fewest}", "too few samples for a statistic")
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
        """The parameters and buffers that the forward reads."""
        bases = {self.graph.base(r) for region in self.plan.regions for r in region.reads}
        bases |= {self.graph.base(r) for r in self.graph.results}
        return [n for n in self.graph if n.op in ("parameter", "buffer") and n.name in bases]

    def state_types(self) -> list[str]:
        """The class attribute that _outside compares the state with."""
        if not self.state():
            return []
        lines = ["    state_types = ("]
        for n in self.state():
            shape = tuple(int(str(d)) for d in n.type.shape)
            lines.append(f"        ({n.type.dtype}, {shape}),  # {self.graph.targets[n.name]}")
        return [*lines, "    )", ""]

    # ---- the forward -----------------------------------------------------------------------

    def forward(self) -> list[str]:
        state, cause, passed = self.local["state"], self.local["cause"], self.arguments()
        lines = [f"    def forward(self, {self.signature()}):"]
        if self.state():
            lines.append(f"        {state} = (")
            lines += [f"            {self.attribute(n.name)}," for n in self.state()]
            lines.append("        )")
            passed = f"{state}, {passed}"
        lines += [
            f"        {cause} = self._outside({passed})",
            f"        if {cause} is not None:",
            f"            self._fall_back({cause})",
            f"            return super().forward({self.arguments()})",
        ]
        if self.state():
            names = [self.variable(n.name) for n in self.state()]
            lines += listed("        ", "(", names, f") = {state}")
        for symbol in self.graph.symbols:
            lines.append(f"        {self.local[symbol]} = {self.symbol(symbol)}")
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
            lines += [f"        {line}" for line in steps]
        for buffer, value in self.graph.mutations:
            lines.append(f"        self.{buffer}.copy_({self.value(value)})")
        return [*lines, f"        return {self.literal(self.graph.outputs)}"]

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
        return f"{self.inputs[self.first]}.device"

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
        if node.op == "input":
            return self.inputs[name]
        if node.op == "constant":
            return f"_{name}.to({self.inputs[self.first]}.device)"
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
        taken = {"self", "torch", *(p.name for p in self.parameters), *self.local.values()}
        if name in self.graph.by_name and self.graph[name].op in SOURCES:
            wish = name
        return f"{wish}_" if wish in taken else wish

    def attribute(self, name: str) -> str:
        """`self.net[0].weight`: the user's own way to write where a parameter lives."""
        module: Any = self.problem.module
        text = "self"
        for part in self.graph.targets[name].split("."):
            if isinstance(module, INDEXED) and part.isdigit():
                text = f"{text}[{part}]"
            else:
                text = f"{text}.{part}" if part.isidentifier() else f"getattr({text}, {part!r})"
            module = getattr(module, part)
        return text

    def symbol(self, symbol: str) -> str:
        name, axis = self.graph.symbols[symbol]
        return f"{self.inputs[name]}.shape[{axis}]"

    def size(self, dim: Dim, inline: bool = False) -> str:
        """A size as Python: over the emitted locals, or `inline` over the inputs themselves."""
        text = str(dim)
        for symbol, local in self.local.items():
            if symbol in self.graph.symbols:
                text = re.sub(rf"\b{symbol}\b", self.symbol(symbol) if inline else local, text)
        return text

    def tuple_of(self, shape: tuple[Dim, ...]) -> str:
        inside = ", ".join(self.size(d) for d in shape)
        return f"({inside},)" if len(shape) == 1 else f"({inside})"

    def literal(self, value: Any) -> str:
        """A Python literal of nested arguments with Refs and sizes."""
        if isinstance(value, Ref):
            return self.value(value.name)
        if isinstance(value, Scalar):
            items = {symbol: f"{self.value(ref.name)}.item()" for symbol, ref in value.items}
            return as_python(value.expr, {s: self.local[s] for s in self.graph.symbols} | items)
        if isinstance(value, sympy.Expr):
            return self.size(value)
        if isinstance(value, torch.device):
            return f"{self.inputs[self.first]}.device"
        if isinstance(value, tuple):
            inside = ", ".join(self.literal(v) for v in value)
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        if isinstance(value, list):
            return f"[{', '.join(self.literal(v) for v in value)}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.literal(v)}" for k, v in value.items()) + "}"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f'float("{value}")'
        return str(value) if not isinstance(value, str) else repr(value)


def _stars(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return "*"
    return "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""


def _when(test: str, cause: str) -> list[str]:
    return [f"        if {test}:", f'            return "{cause}"']
