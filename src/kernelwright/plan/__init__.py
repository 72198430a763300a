"""Primitives become regions: which operators share a kernel, and why. See fuse.py for the walk."""

from kernelwright.plan.alone import leave_alone
from kernelwright.plan.attention import attend, attended, attends
from kernelwright.plan.biases import return_biases
from kernelwright.plan.channels import with_channels_last
from kernelwright.plan.conv_seats import ConvTimed, folded
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.dense import copies, dense
from kernelwright.plan.depthwise import as_windows
from kernelwright.plan.direct import small_convolutions, with_direct
from kernelwright.plan.epilogue import Seat, decompose, needs_whole_tiles
from kernelwright.plan.few import few_rows
from kernelwright.plan.fuse import plan
from kernelwright.plan.host import host_products
from kernelwright.plan.layouts import Layouts, choose, in_channels_last, slow, told, turned_back
from kernelwright.plan.limits import Limits, limits_of
from kernelwright.plan.means import from_statistics
from kernelwright.plan.model import (
    Access,
    Attention,
    Buffer,
    Conv,
    Coordinate,
    Direct,
    Gemm,
    HostProduct,
    Operand,
    Plan,
    Program,
    Range,
    Region,
    Stage,
    Store,
    element_type,
    stage_of_mean,
)
from kernelwright.plan.pixels import as_products
from kernelwright.plan.policy import ALWAYS, CHANNELS_LAST, WHERE_IT_PAYS, Policy
from kernelwright.plan.seats import Ways, seat, ways
from kernelwright.plan.sizes import sizes_to_hold
from kernelwright.plan.tails import Tail, tails
from kernelwright.plan.tiles import Tiled, tiled
from kernelwright.plan.walks import Walk, walk
from kernelwright.plan.whole_rows import hold_rows

__all__ = [
    "ALWAYS",
    "CHANNELS_LAST",
    "WHERE_IT_PAYS",
    "Access",
    "Attention",
    "Buffer",
    "Conv",
    "ConvForm",
    "ConvTimed",
    "Coordinate",
    "Direct",
    "Gemm",
    "HostProduct",
    "Layouts",
    "Limits",
    "Operand",
    "Plan",
    "Policy",
    "Program",
    "Range",
    "Region",
    "Seat",
    "Stage",
    "Store",
    "Tail",
    "Tiled",
    "Walk",
    "Ways",
    "as_products",
    "as_windows",
    "attend",
    "attended",
    "attends",
    "choose",
    "copies",
    "decompose",
    "dense",
    "element_type",
    "few_rows",
    "folded",
    "from_statistics",
    "hold_rows",
    "host_products",
    "in_channels_last",
    "leave_alone",
    "limits_of",
    "needs_whole_tiles",
    "plan",
    "return_biases",
    "seat",
    "sizes_to_hold",
    "slow",
    "small_convolutions",
    "stage_of_mean",
    "tails",
    "tiled",
    "told",
    "turned_back",
    "walk",
    "ways",
    "with_channels_last",
    "with_direct",
]
