import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    gelu (half_gelu_group_norm.py:15), group_norm (half_gelu_group_norm.py:15),
    mul (half_gelu_group_norm.py:15)
        fused into gelu_group_norm_mul; one kernel for 3 operators over the same rows
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


def _kw_fused(x, norm_weight, norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    device = x.device
    mul = _kw_empty((batch, 64), torch.float16, device)
    _kw_launch("gelu_group_norm_mul", device, [x, norm_weight, norm_bias, mul], batch)
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
    if x.dtype != torch.float16:
        return "x is not float16"
    if x.ndim != 2 or x.shape[1:] != (64,):
        return "x is not of shape batch x 64"
    place = x.device
    unknown = _kw_unlike(state, place)
    for tensor, (dtype, shape, device) in zip(unknown, _KW_STATE_TYPES):
        if tensor.dtype != dtype or tensor.shape != shape:
            return "a parameter has another type or shape"
        if tensor.device != place and tensor.device.type != device:
            return "a parameter is on another device"
        if not _kw_is_ordinary(tensor):
            return "a parameter is not a plain tensor"
    if unknown:
        _kw_fits(state, place)
    if torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    return None


def _kw_original(module, x):
    """What fused() computes, by the original forward."""
    outputs = Model.forward(module, x)
    return (outputs,)


def _kw_blank(x, norm_weight, norm_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 64), dtype=torch.float16, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float16, (64,), None),  # norm.weight
    (torch.float16, (64,), None),  # norm.bias
)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return (module.norm.weight, module.norm.bias)


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", ("norm",), (), {}, {}),
    (
        ("norm",),
        "torch.nn.modules.normalization.GroupNorm",
        ("weight", "bias"),
        (),
        {"num_groups": 4, "num_channels": 64, "eps": 1e-05, "affine": True},
        {},
    ),
)
