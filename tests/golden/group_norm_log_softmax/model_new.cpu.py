import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    group_norm (group_norm_log_softmax.py:13), log_softmax (group_norm_log_softmax.py:13)
        fused into group_norm_log_softmax; one kernel for 2 operators over the same rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        (log_softmax,) = _KW_FUSION.run(memo, (x,))
        return log_softmax

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(x, norm_weight, norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    log_softmax = _kw_empty((batch, 60), torch.float32)
    _kw_launch("group_norm_log_softmax", [x, norm_weight, norm_bias, log_softmax], batch)
    return (log_softmax,)


def _kw_outside(state, x):
    """Why the kernels cannot take this call, or None when they can."""
    cause = _kw_transformed(None)
    if cause is not None:
        return cause
    if not _kw_is_ordinary(x):
        return "x is not a plain tensor"
    if x.device.type != "cpu":
        return "x is not on a cpu device"
    if x.dtype != torch.float32:
        return "x is not float32"
    if x.ndim != 2 or x.shape[1:] != (60,):
        return "x is not of shape batch x 60"
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
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return None


def _kw_original(module, x):
    """What fused() computes, by the original forward."""
    outputs = Model.forward(module, x)
    return (outputs,)


def _kw_blank(x, norm_weight, norm_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 60), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (60,), None),  # norm.weight
    (torch.float32, (60,), None),  # norm.bias
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
        {"num_groups": 5, "num_channels": 60, "eps": 1e-05, "affine": True},
        {},
    ),
)
