import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (gemm_groupnorm_min_bias.py:15)
        left to ATen: linear.default; a library contraction: 1.34e+08 flop, 2.36e+06 bytes
    linear (gemm_groupnorm_min_bias.py:15)
        fused into bias_group_norm_min; its bias: one kernel for 3 operators over the same rows
    group_norm (gemm_groupnorm_min_bias.py:16), min (gemm_groupnorm_min_bias.py:17)
        fused into bias_group_norm_min; one kernel for 3 operators over the same rows
    add (gemm_groupnorm_min_bias.py:18)
        fused into add; one kernel for 1 operator, element by element
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        (add,) = _KW_FUSION.run(memo, (x,))
        return add

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    min_value_values = _kw_empty((batch, 1), torch.float32)
    gemm_product = _kw_empty((min(batch, 4096), 256), torch.float32)
    for start in range(0, batch, 4096):
        stop = min(start + 4096, batch)
        panel = gemm_product[: stop - start]
        torch.mm(x[start:stop], gemm_weight.t(), out=panel)
        _kw_launch(
            "bias_group_norm_min",
            [
                panel, gemm_bias, group_norm_weight, group_norm_bias,
                min_value_values[start:stop],
            ],
            stop - start,
        )
    del gemm_product
    add = _kw_empty((1, 256, batch, 1), torch.float32)
    _kw_launch("add", [min_value_values, bias, add], batch)
    return (add,)


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
    if x.ndim != 2 or x.shape[1:] != (256,):
        return "x is not of shape batch x 256"
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


def _kw_blank(x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((1, 256, batch, 1), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (1, 256, 1, 1), None),  # bias
    (torch.float32, (256, 256), None),  # gemm.weight
    (torch.float32, (256,), None),  # gemm.bias
    (torch.float32, (256,), None),  # group_norm.weight
    (torch.float32, (256,), None),  # group_norm.bias
)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return (
        module.bias, module.gemm.weight, module.gemm.bias, module.group_norm.weight,
        module.group_norm.bias,
    )


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", ("gemm", "group_norm", "bias"), (), {}, {}),
    (
        ("gemm",),
        "torch.nn.modules.linear.Linear",
        ("weight", "bias"),
        (),
        {"in_features": 256, "out_features": 256},
        {},
    ),
    (
        ("group_norm",),
        "torch.nn.modules.normalization.GroupNorm",
        ("weight", "bias"),
        (),
        {"num_groups": 16, "num_channels": 256, "eps": 1e-05, "affine": True},
        {},
    ),
)
