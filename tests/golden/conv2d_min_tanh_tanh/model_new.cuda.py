import torch

_KW_GENERATED_GEMM = True  # False: every product is the library's


class ModelNew(Model):
    """Where each operator of Model.forward went.

    conv2d (conv2d_min_tanh_tanh.py:13), min (conv2d_min_tanh_tanh.py:13),
    tanh (conv2d_min_tanh_tanh.py:14) 2 times
        fused into conv2d_min_tanh; a generated convolution (float32 as three float16 products:
        eager's own error is not known here, so float32's accuracy is owed) with 3 operators in
        its epilogue; estimated 9.48 us, with the library and a kernel after it 11
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


def _kw_conv2d_min_tanh(batch, device, x, conv_weight, conv_bias):
    """tanh at conv2d_min_tanh_tanh.py:14."""
    if _KW_GENERATED_GEMM and _kw_capability(device) == (9, 0):
        packed_weight = _kw_empty((1536,), torch.uint8, device)
        weight_scales = _kw_empty((64,), torch.uint8, device)
        tanh_2 = _kw_empty((batch, 1, 7, 7), torch.float32, device)
        _kw_launch(
            "conv2d_min_tanh", device,
            [x, conv_weight, packed_weight, weight_scales, conv_bias, tanh_2],
            batch, 0,
        )
    else:
        conv_product = torch.nn.functional.conv2d(x, conv_weight, None, (1, 1), (0, 0), (1, 1), 1)
        tanh_2 = _kw_empty((batch, 1, 7, 7), torch.float32, device)
        _kw_launch("bias_min_tanh", device, [conv_product, conv_bias, tanh_2], batch)
    return tanh_2


def _kw_fused(x, conv_weight, conv_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    device = x.device
    tanh_2 = _kw_conv2d_min_tanh(batch, device, x, conv_weight, conv_bias)
    return (tanh_2,)


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
    if torch.is_autocast_enabled("cuda"):
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
