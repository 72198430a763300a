import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (linear_sigmoid_linear_logsumexp.py:14)
        left to ATen: linear.default; a library contraction: 2.52e+06 flop, 2.96e+05 bytes
    linear (linear_sigmoid_linear_logsumexp.py:14)
        fused into bias_sigmoid; its bias: one kernel for 2 operators, element by element
    sigmoid (linear_sigmoid_linear_logsumexp.py:14)
        fused into bias_sigmoid; one kernel for 2 operators, element by element
    linear (linear_sigmoid_linear_logsumexp.py:15)
        left to ATen: linear.default; a library contraction: 6.47e+06 flop, 4.96e+05 bytes
    linear (linear_sigmoid_linear_logsumexp.py:15)
        fused into bias_logsumexp; its bias: one kernel for 2 operators over the same rows
    logsumexp (linear_sigmoid_linear_logsumexp.py:15)
        fused into bias_logsumexp; one kernel for 2 operators over the same rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        batch = x.shape[0]
        (logsumexp,) = _KW_FUSION.run(memo, (x,))
        return logsumexp.reshape((batch,))

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(x, linear_weight, linear_bias, second_weight, second_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    device = x.device
    linear_product = torch.nn.functional.linear(x, linear_weight)
    sigmoid = _kw_empty((batch, 41), torch.float32, device)
    _kw_launch("bias_sigmoid", device, [linear_product, linear_bias, sigmoid], batch)
    del linear_product
    second_product = torch.nn.functional.linear(sigmoid, second_weight)
    del sigmoid
    logsumexp = _kw_empty((batch, 1), torch.float32, device)
    _kw_launch("bias_logsumexp", device, [second_product, second_bias, logsumexp], batch)
    return (logsumexp,)


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
    if x.ndim != 2 or x.shape[1:] != (30,):
        return "x is not of shape batch x 30"
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
    batch = x.shape[0]
    outputs = Model.forward(module, x)
    return (outputs.reshape((batch, 1)),)


def _kw_blank(x, linear_weight, linear_bias, second_weight, second_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 1), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (41, 30), None),  # linear.weight
    (torch.float32, (41,), None),  # linear.bias
    (torch.float32, (77, 41), None),  # second.weight
    (torch.float32, (77,), None),  # second.bias
)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return (module.linear.weight, module.linear.bias, module.second.weight, module.second.bias)


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", ("linear", "second"), (), {}, {}),
    (
        ("linear",),
        "torch.nn.modules.linear.Linear",
        ("weight", "bias"),
        (),
        {"in_features": 30, "out_features": 41},
        {},
    ),
    (
        ("second",),
        "torch.nn.modules.linear.Linear",
        ("weight", "bias"),
        (),
        {"in_features": 41, "out_features": 77},
        {},
    ),
)
