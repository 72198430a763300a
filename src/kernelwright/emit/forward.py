"""The Python of ModelNew.forward: guards first, then one statement or two for each region."""

from __future__ import annotations

import inspect
from typing import Any

from kernelwright.graph import SOURCES, Call, Dim, Node, Ref, View
from kernelwright.lower import Kernel
from kernelwright.plan import Plan, Region
from kernelwright.problem import Problem

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


class ForwardWriter:
    """Prints the guard and the forward of one plan."""

    def __init__(
        self, problem: Problem, plan: Plan, kernels: tuple[Kernel, ...], device: str
    ) -> None:
        self.problem = problem
        self.device = device
        self.plan = plan
        self.graph = plan.graph
        self.kernels = {k.name: k for k in kernels}
        signature = inspect.signature(problem.module.forward)
        self.parameters = list(signature.parameters.values())
        self.inputs = self._bind(signature)
        self.first = next(n.name for n in self.graph if n.op == "input")

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
        import torch

        flat = [n for n, v in zip(names, self.problem.inputs, strict=True) if isinstance(v, torch.Tensor)]
        self.constants = {
            n: v
            for n, v in zip(names, self.problem.inputs, strict=True)
            if not isinstance(v, torch.Tensor)
        }
        return dict(zip(tensors, flat, strict=True))

    # ---- what the kernels cover ------------------------------------------------------------

    def signature(self) -> str:
        listed = []
        for p in self.parameters:
            text = p.name
            if p.kind is inspect.Parameter.VAR_POSITIONAL:
                text = f"*{p.name}"
            elif p.kind is inspect.Parameter.VAR_KEYWORD:
                text = f"**{p.name}"
            elif p.default is not inspect.Parameter.empty:
                text = f"{p.name}={p.default!r}"
            listed.append(text)
        return ", ".join(listed)

    def arguments(self) -> str:
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        return ", ".join(stars.get(p.kind, "") + p.name for p in self.parameters)

    def outside(self) -> list[str]:
        """The method that says why a call is outside of what the kernels cover."""
        first = self.inputs[self.first]
        state = ["state"] if self.state() else []
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
                "        for tensor, (dtype, shape) in zip(state, self.state_types):",
                "            if tensor.dtype != dtype or tensor.shape != shape:",
                '                return "a parameter has another type or shape"',
                f"            if tensor.device != {first}.device:",
                '                return "a parameter is on another device"',
            ]
        if self.graph.mode != "any":
            state = "training" if self.problem.training else "eval"
            test = "not self.training" if self.problem.training else "self.training"
            lines += _when(test, f"compiled for {state} mode")
        needs = " or ".join(["any(p.requires_grad for p in self.parameters())"] + [
            f"{name}.requires_grad" for name in self.inputs.values()
        ])
        lines += _when(f"torch.is_grad_enabled() and ({needs})", "gradients are needed, and no backward was generated")
        return [*lines, "        return None"]

    def _input_checks(self, node: Node, name: str) -> list[str]:
        shape, device = node.type.shape, self.device
        lines = _when(f"not isinstance({name}, torch.Tensor)", f"{name} is not a tensor")
        lines += _when(f'{name}.device.type != "{device}"', f"{name} is not on a {device} device")
        lines += _when(f"{name}.dtype != {node.type.dtype}", f"{name} is not {str(node.type.dtype)[6:]}")
        fixed = {i: d for i, d in enumerate(shape) if isinstance(d, int)}
        tests = [f"{name}.ndim != {len(shape)}"]
        start = 0 if 0 in fixed else 1
        if len(fixed) == len(shape) - start and fixed:
            sizes = tuple(fixed[i] for i in range(start, len(shape)))
            tests.append(f"{name}.shape[{start}:] != {sizes}" if start else f"{name}.shape != {sizes}")
        else:
            tests += [f"{name}.shape[{i}] != {d}" for i, d in fixed.items()]
        listed = " x ".join(str(d) for d in shape)
        return lines + _when(" or ".join(tests), f"{name} is not of shape {listed}")

    def _symbol_checks(self) -> list[str]:
        """Sizes that must agree, and a batch that a statistic over it can digest."""
        lines: list[str] = []
        for node in self.graph:
            for axis, size in enumerate(node.type.shape if node.op == "input" else ()):
                if isinstance(size, int) or self.graph.symbols.get(str(size)) == (node.name, axis):
                    continue
                place = f"{self.inputs[node.name]}.shape[{axis}]"
                lines += _when(f"{place} != {self.size(size, inline=True)}", "the inputs differ in batch size")
        for symbol in self.reduced_symbols():
            lines += _when(f"{self.symbol(symbol)} < 2", "statistics over a batch of fewer than two")
        return lines

    def reduced_symbols(self) -> list[str]:
        found: dict[str, None] = {}
        for kernel in self.kernels.values():
            for atom in kernel.program.elements if kernel.program.stages else ():
                size = kernel.program.sizes[atom]
                if not isinstance(size, int):
                    found |= {str(s): None for s in size.free_symbols}
        return list(found)

    def state(self) -> list[Node]:
        """The parameters and buffers that the forward reads."""
        bases = {self.base(r) for region in self.plan.regions for r in region.reads}
        bases |= {self.base(r) for r in self.graph.results}
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
        lines = [f"    def forward(self, {self.signature()}):"]
        passed = self.arguments()
        if self.state():
            lines.append("        state = (")
            lines += [f"            {self.attribute(n.name)}," for n in self.state()]
            lines.append("        )")
            passed = f"state, {passed}"
        lines += [
            f"        cause = self._outside({passed})",
            "        if cause is not None:",
            "            self._fall_back(cause)",
            f"            return super().forward({self.arguments()})",
        ]
        if self.state():
            names = ", ".join(self.variable(n.name) for n in self.state())
            lines.append(f"        {names}{',' if len(self.state()) == 1 else ''} = state")
        for symbol in self.graph.symbols:
            lines.append(f"        {symbol} = {self.symbol(symbol)}")
        for region in self.plan.regions:
            lines += [f"        {line}" for line in self.step(region)]
        for buffer, value in self.graph.mutations:
            lines.append(f"        self.{buffer}.copy_({self.value(value)})")
        return [*lines, f"        return {self.literal(self.graph.outputs)}"]

    def step(self, region: Region) -> list[str]:
        if region.program is not None:
            return self.launch(region)
        assert region.call is not None
        target = self.variable(region.outputs[0].name)
        text = f"{target} = {self.call(region.call)}"
        if region.kind == "contract" and self.device == "cuda":
            return ["with _Precision():", f"    {text}"]
        return [text]

    def launch(self, region: Region) -> list[str]:
        lines = []
        for b in region.outputs:
            shape = self.tuple_of(b.shape)
            like = self.inputs[self.first]
            lines.append(
                f"{self.variable(b.name)} = torch.empty({shape}, dtype={b.dtype}, device={like}.device)"
            )
        tensors = [self.value(r) for r in region.reads] + [self.variable(b.name) for b in region.outputs]
        stores = region.program.stores if region.program else ()
        assert [s.access.buffer for s in stores] == [b.name for b in region.outputs]
        lines += [
            "_launch(",
            f'    "{region.name}",',
            f"    {self.inputs[self.first]}.device,",
            f"    [{', '.join(tensors)}],",
            *(f"    {s}," for s in self.graph.symbols),
            ")",
        ]
        return lines

    def call(self, call: Call) -> str:
        if call.target == "getitem":
            source, index = call.args
            return f"{self.value(source.name)}[{index}]"
        args = list(call.args)
        target = FRIENDLY.get(call.target, call.target)
        while target.startswith("torch.nn") and args and args[-1] is None:
            args.pop()
        listed = [self.literal(a) for a in args]
        listed += [f"{k}={self.literal(v)}" for k, v in call.kwargs]
        return f"{target}({', '.join(listed)})"

    # ---- names and values ------------------------------------------------------------------

    def value(self, name: str) -> str:
        """A Python expression for a graph value: a variable, an attribute, or a view of one."""
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
        method = "expand" if view.kind == "expand" else "reshape"
        return f"{inner}.{method}({self.tuple_of(node.type.shape)})"

    def base(self, name: str) -> str:
        node = self.graph[name]
        return self.base(node.inputs[0]) if node.op == "view" else name

    def variable(self, name: str) -> str:
        """A buffer is called after the captured value that is a plain view of it, if there is one."""
        views = [u for u in self.graph.users[name] if self.graph[u].op == "view"]
        same = [u for u in views if self.graph[u].sources == self.graph[name].sources]
        wish = same[0] if len(same) == 1 else name
        taken = {p.name for p in self.parameters} | {"cause", "state", "self", *self.graph.symbols}
        if self.graph[name].op in SOURCES:
            wish = name
        return f"{wish}_" if wish in taken else wish

    def attribute(self, name: str) -> str:
        parts = self.graph.targets[name].split(".")
        text = "self"
        for part in parts:
            text = f"{text}[{part}]" if part.isdigit() else f"{text}.{part}"
        return text

    def symbol(self, symbol: str) -> str:
        name, axis = self.graph.symbols[symbol]
        return f"{self.inputs[name]}.shape[{axis}]"

    def size(self, dim: Dim, inline: bool = False) -> str:
        text = str(dim)
        if inline:
            for symbol in self.graph.symbols:
                text = text.replace(symbol, self.symbol(symbol))
        return text

    def tuple_of(self, shape: tuple[Dim, ...]) -> str:
        inside = ", ".join(self.size(d) for d in shape)
        return f"({inside},)" if len(shape) == 1 else f"({inside})"

    def literal(self, value: Any) -> str:
        """A Python literal of nested arguments with Refs and sizes."""
        if isinstance(value, Ref):
            return self.value(value.name)
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


def _when(test: str, cause: str) -> list[str]:
    return [f"        if {test}:", f'            return "{cause}"']
