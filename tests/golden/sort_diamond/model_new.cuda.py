import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    softmax (sort_diamond.py:9)
        fused into softmax; one kernel for 1 operator over the same rows
    sort (sort_diamond.py:10)
        left to ATen: sort.default; no primitive form of sort: it stays with ATen
    mul (sort_diamond.py:10)
        fused into mul; one kernel for 1 operator, element by element
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        (mul,) = _KW_FUSION.run(memo, (x,))
        return mul

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(x):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    device = x.device
    softmax = _kw_empty((batch, 21), torch.float32, device)
    _kw_launch("softmax", device, [x, softmax], batch)
    sort = torch.ops.aten.sort.default(softmax, 1, False)
    sort_result = sort[0]
    del sort
    mul = _kw_empty((batch, 21), torch.float32, device)
    _kw_launch("mul", device, [softmax, sort_result, mul], batch)
    return (mul,)


def _kw_outside(state, x):
    """Why the kernels cannot take this call, or None when they can."""
    cause = _kw_transformed(None)
    if cause is not None:
        return cause
    if not _kw_is_ordinary(x):
        return "x is not a plain tensor"
    if x.device.type != "cuda":
        return "x is not on a cuda device"
    if x.dtype != torch.float32:
        return "x is not float32"
    if x.ndim != 2 or x.shape[1:] != (21,):
        return "x is not of shape batch x 21"
    if torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    return None


def _kw_original(module, x):
    """What fused() computes, by the original forward."""
    outputs = Model.forward(module, x)
    return (outputs,)


def _kw_blank(x):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 21), dtype=torch.float32, device=x.device),)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return ()


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", (), (), {}, {}),
)
