"""Generated products in the emitted Python: which way a call takes, and weights that are frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelwright.emit.epilogue import SPLIT_OPERANDS
from kernelwright.emit.lines import indented, listed
from kernelwright.graph import Dim, product
from kernelwright.lower import GemmKernel
from kernelwright.plan import Gemm, Operand, Region

if TYPE_CHECKING:
    from kernelwright.emit.forward import ForwardWriter

SWITCH = """
GENERATED_GEMM = True  # False: every product is the library's
"""

HOPPER = '''
@functools.cache
def _hopper(device):
    """Whether this is a GPU with the instructions of the generated products."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def _processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count
'''

HALVES = '''
def _halves(device, matrices, rows, depth, planes):
    """Memory for matrices as so many of float16 each, and for two numbers about each row."""
    panels = (matrices, -(-rows // 64), -(-depth // 64), planes, 64, 64)
    halves = torch.empty(panels, dtype=torch.float16, device=device)
    return halves, torch.empty((matrices, rows, 2), dtype=torch.float32, device=device)


def _stamp(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version
'''

WEIGHT_HALVES = '''
def _weight_halves(memo, name, weight, shape):
    """The halves of a frozen weight, or memory for them, and whether they are frozen."""
    if name not in memo.frozen:
        return (*_halves(weight.device, 1, *shape, {planes}), False)
    halves, scales, stamp = memo.frozen[name]
    if stamp != _stamp(weight):
        again = "call freeze() again or unfreeze()"
        raise RuntimeError(f"The weight {name} changed after freeze(); {again}.")
    return halves, scales, True
'''

FREEZING_NAMES = ("freeze", "unfreeze")
FREEZING = '''
    def freeze(self):
        """Split the weights now instead of at every call, and return self.

        From here to unfreeze() the weights must stay as they are. A call notices most changes and
        raises an error. It cannot see a write through `.data`, and would use the old values.
        """
        frozen = {}
        for name, kernel, weight, shape, sizes in (
{weights}
        ):
            if weight.dtype == torch.float32 and weight.shape == shape and _hopper(weight.device):
                halves, scales = _halves(weight.device, 1, *sizes, {planes})
                _launch(kernel, weight.device, [weight, halves, scales], verb="freeze")
                frozen[name] = (halves, scales, _stamp(weight))
        FUSION.memo(self).frozen = frozen
        return self

    def unfreeze(self):
        """Split the weights at every call again, and return self."""
        FUSION.memo(self).frozen = {}
        return self

    def _apply(self, *args, **kwargs):
        self.unfreeze()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        self.unfreeze()
        return super()._load_from_state_dict(*args, **kwargs)
'''


def product_steps(writer: ForwardWriter, region: Region, gemm: Gemm) -> list[str]:
    """Both ways to a product: the generated kernel, or the library's and the kernels after it."""
    tests = ["GENERATED_GEMM", f"{writer.size(gemm.rows)} >= {gemm.fewest}"]
    if isinstance(gemm.rows, int):
        tests.pop()  # the planner has compared them
    return [
        f"if {' and '.join([*tests, f'_hopper({writer.device_of()})'])}:",
        *indented(_generated(writer, region, gemm)),
        "else:",
        *indented([line for step in gemm.library for line in writer.step(step)]),
    ]


def _generated(writer: ForwardWriter, region: Region, gemm: Gemm) -> list[str]:
    kernel = writer.kernels[region.name]
    assert isinstance(kernel, GemmKernel)
    operands = [writer.value(x.buffer) for x in (gemm.left, gemm.right)]
    lines, frozen = [], "False"
    if kernel.splits:
        found, frozen = _halves(writer, kernel, region)
        lines += found
        operands += [writer.local[word] for word in SPLIT_OPERANDS]
    finish = f"{region.name}_finish"
    lines += writer.allocate((*kernel.partials, *region.outputs))
    lines += _decided(writer, kernel, frozen)
    sizes = [*writer.sizes(), f"*{writer.local['how']}[:3]", frozen]
    lines += writer.launch_on(region.name, [*operands, *writer.operands(region.name)], sizes)
    if finish in writer.kernels:
        lines += writer.launch_on(finish, writer.operands(finish), writer.sizes())
    return lines


def _decided(writer: ForwardWriter, kernel: GemmKernel, frozen: str) -> list[str]:
    """How it is launched, which depends on the sizes of the call."""
    sizes = [writer.size(n) for n in (kernel.gemm.rows, product(kernel.gemm.batch))]
    call = [*sizes, str(tuple(kernel.rule)), f"_processors({writer.device_of()})", frozen]
    return listed("", f"{writer.local['how']} = product_launch(", call, ")")


def _halves(writer: ForwardWriter, kernel: GemmKernel, region: Region) -> tuple[list[str], str]:
    """Memory for both operands in halves, and whether the right one's are there already."""
    gemm = kernel.gemm
    words = [writer.local[word] for word in (*SPLIT_OPERANDS, "frozen")]
    left_halves, left_scales, right_halves, right_scales, progress, frozen = words
    weight, planes, device = weight_of(writer, region), gemm.loop.planes, writer.device_of()

    def room(operand: Operand, rows: Dim) -> str:
        matrices = _distinct(operand, gemm.batch)
        sizes = ", ".join(writer.size(n) for n in (matrices, rows, gemm.depth, planes))
        return f"_halves({device}, {sizes})"

    lines = [f"{left_halves}, {left_scales} = {room(gemm.left, gemm.rows)}"]
    if weight is None:
        lines.append(f"{right_halves}, {right_scales} = {room(gemm.right, gemm.columns)}")
        frozen = "False"
    else:
        name, value = writer.graph.targets[weight], writer.value(weight)
        kept = [writer.local["memo"], f'"{name}"', value, f"({gemm.columns}, {gemm.depth})"]
        given = f"{right_halves}, {right_scales}, {frozen} = _weight_halves("
        lines += listed("", given, kept, ")")
    # A counter, and for each column of tiles how far its split is; clusters count as whole ones.
    columns, cluster = kernel.tile.columns, kernel.tile.cluster
    tiles = -(-gemm.columns // (columns * cluster)) * cluster
    return [*lines, writer.empty(progress, f"({1 + tiles},)", torch.int32)], frozen


def _distinct(operand: Operand, batch: tuple[Dim, Dim]) -> Dim:
    """How many matrices an operand has; along an axis of stride 0 they are the same one."""
    strides = (operand.outer, operand.inner)
    return product([n for n, stride in zip(batch, strides, strict=True) if stride != 0])


def weight_of(writer: ForwardWriter, region: Region) -> str | None:
    """The parameter that is the weight of a split product: freeze() can keep its halves."""
    if region.gemm is None:
        return None
    if any(hasattr(writer.problem.module, word) for word in FREEZING_NAMES):
        return None  # the user's methods of these names must stay what they are
    kernel = writer.kernels[region.name]
    if not isinstance(kernel, GemmKernel) or not kernel.freezes:
        return None
    name = region.gemm.right.buffer
    return name if writer.graph[name].op in ("parameter", "buffer") else None


def freezing(writer: ForwardWriter) -> tuple[str, str]:
    """A function and the methods that keep the halves of weights, if there are such weights."""
    rows: dict[str, list[str]] = {}
    planes = 0
    for region in writer.plan.regions:
        name = weight_of(writer, region)
        if name is None or region.gemm is None:
            continue
        planes = region.gemm.loop.planes  # one type and precision, so one loop for all of them
        target, shape = writer.graph.targets[name], tuple(writer.graph[name].type.shape)
        sizes = (region.gemm.columns, region.gemm.depth)
        row = [f'"{target}"', f'"{region.name}"', writer.attribute(target, "self")]
        row += [str(shape), str(sizes)]
        rows.setdefault(target, listed(" " * 12, "(", row, "),", margin=0))
    listing = "\n".join(line for row in rows.values() for line in row)
    text = FREEZING.replace("{planes}", str(planes)).replace("{weights}", listing)
    return (WEIGHT_HALVES.replace("{planes}", str(planes)), text) if rows else ("", "")
