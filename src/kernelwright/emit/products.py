"""Generated products in the emitted Python: the switch, the machine, weights that are frozen."""

from __future__ import annotations

from kernelwright.emit.lines import indented
from kernelwright.emit.names import Names
from kernelwright.emit.steps import on_machine
from kernelwright.emit.values import python
from kernelwright.lower.steps import Frozen, halves

SWITCH = """
GENERATED_GEMM = True  # False: every product is the library's
"""

INSIDE = " " * 12  # of the table in freeze()
FREEZING_NAMES = ("freeze", "unfreeze")
FREEZING = '''
    def freeze(self):
        """Split the weights now instead of at every call, and return self.

        From here to unfreeze() the weights must stay as they are. A call notices most changes and
        raises an error. It cannot see a write through `.data`, and would use the old values.
        """
        frozen = {}
        for kernel, shape, rows, panels, weights in (
{weights}
        ):
            for name, weight in weights.items():
                device = weight.device
                known = weight.dtype == torch.float32 and weight.shape == shape
                if known and {machine}:
                    halves = torch.empty(panels, dtype=torch.float16, device=device)
                    scales = torch.empty((rows, 2), dtype=torch.float32, device=device)
                    KERNEL_LIBRARY.start(kernel, device, [weight, halves, scales], ())
                    frozen[name] = (halves, scales, stamped(weight))
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


def freezing(names: Names, weights: tuple[Frozen, ...]) -> str:
    """The methods that keep the halves of weights, if there are such weights."""
    if not weights:
        return ""
    alike: dict[str, list[str]] = {}
    for w in weights:
        panels = halves("weight", 1, w.rows, w.depth, w.planes)[0].shape
        kernel = f'"freeze_{w.kernel}", {w.shape}, {w.rows}, {panels}'
        pair = f"{python(w.target)}: {names.attribute(w.target, 'self')}"
        alike.setdefault(kernel, []).append(pair)
    lines: list[str] = []
    for kernel, pairs in alike.items():
        lines += [f"({kernel}, {{", *indented([f"{pair}," for pair in pairs]), "}),"]
    (machine,) = {on_machine(w.machine, "device") for w in weights}
    text = "\n".join(f"{INSIDE}{line}" for line in lines)
    return FREEZING.replace("{weights}", text).replace("{machine}", machine)
