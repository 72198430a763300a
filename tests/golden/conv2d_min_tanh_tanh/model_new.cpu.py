import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    conv2d (conv2d_min_tanh_tanh.py:13)
        left to ATen: conv2d.default; a library contraction: 2.17e+07 flop, 2.53e+06 bytes; in
        channels_last, which saves about 8 us
    conv2d (conv2d_min_tanh_tanh.py:13)
        fused into bias_min_tanh; its bias: one kernel for 4 operators over the same rows
    min (conv2d_min_tanh_tanh.py:13), tanh (conv2d_min_tanh_tanh.py:14) 2 times
        fused into bias_min_tanh; one kernel for 4 operators over the same rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        (tanh_2,) = _KW_FUSION.run(memo, (x,))
        return tanh_2

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(x, conv_weight, conv_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    x_channels = _kw_empty((batch, 9, 9, 4), torch.float32)
    _kw_launch("channels_last", [x, x_channels], batch)
    tanh_2 = _kw_empty((batch, 1, 7, 7), torch.float32)
    samples = max(1, batch if batch <= 3566 else round(2097152 * torch.get_num_threads() / 1176))
    slices = min(-(-batch // samples), batch)
    del samples
    for part in range(slices):
        start = batch * part // slices
        stop = batch * (part + 1) // slices
        conv_product_last = torch.nn.functional.conv2d(
            x_channels[start:stop].permute(0, 3, 1, 2), conv_weight, None, (1, 1), (0, 0), (1, 1),
            1,
        ).permute(0, 2, 3, 1)
        _kw_launch("bias_min_tanh", [conv_product_last, conv_bias, tanh_2[start:stop]], stop - start)
    return (tanh_2,)


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
    if x.ndim != 4 or x.shape[1:] != (4, 9, 9):
        return "x is not of shape batch x 4 x 9 x 9"
    if _kw_is_channels_last(x):
        return "x is in channels_last order"
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


def _kw_blank(x, conv_weight, conv_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 1, 7, 7), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (6, 4, 3, 3), None),  # conv.weight
    (torch.float32, (6,), None),  # conv.bias
)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return (module.conv.weight, module.conv.bias)


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", ("conv",), (), {}, {}),
    (
        ("conv",),
        "torch.nn.modules.conv.Conv2d",
        ("weight", "bias"),
        (),
        {
            "in_channels": 4,
            "out_channels": 6,
            "kernel_size": (3, 3),
            "stride": (1, 1),
            "padding": (0, 0),
            "dilation": (1, 1),
            "transposed": False,
            "output_padding": (0, 0),
            "groups": 1,
            "padding_mode": "zeros",
            "_reversed_padding_repeated_twice": (0, 0, 0, 0),
        },
        {},
    ),
)
