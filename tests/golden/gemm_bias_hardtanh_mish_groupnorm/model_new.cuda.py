import torch

_KW_GENERATED_GEMM = True  # False: every product is the library's


class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (gemm_bias_hardtanh_mish_groupnorm.py:17),
    hardtanh (gemm_bias_hardtanh_mish_groupnorm.py:18),
    mish (gemm_bias_hardtanh_mish_groupnorm.py:18),
    group_norm (gemm_bias_hardtanh_mish_groupnorm.py:19)
        fused into linear_hardtanh_mish_group_norm; a generated product (float32 as three
        float16 products) with 3 operators in its epilogue; the library below 2048 rows
    add (gemm_bias_hardtanh_mish_groupnorm.py:17)
        fused into linear_hardtanh_mish_group_norm; linear(x, W, b) + c => linear(x, W, b + c);
        a generated product (float32 as three float16 products) with 3 operators in its
        epilogue; the library below 2048 rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        batch = x.shape[0]
        (group_norm,) = _KW_FUSION.run(memo, (x,))
        return group_norm.reshape((batch, 256))

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks

    def freeze(self):
        """Split the weights now instead of at every call, and return self.

        From here to unfreeze() the weights must stay as they are. A call notices most changes and
        raises an error. It cannot see a write through `.data`, and would use the old values.
        """
        frozen = {}
        for kernel, shape, rows, panels, weights in (
            ("freeze_linear_hardtanh_mish_group_norm", (256, 256), 256, (1, 4, 4, 2, 64, 64), {
                "gemm.weight": self.gemm.weight,
            }),
        ):
            for name, weight in weights.items():
                device = weight.device
                known = weight.dtype == torch.float32 and weight.shape == shape
                if known and _kw_capability(device) == (9, 0):
                    halves = torch.empty(panels, dtype=torch.float16, device=device)
                    scales = torch.empty((rows, 2), dtype=torch.float32, device=device)
                    _KW_KERNEL_LIBRARY.start(kernel, device, [weight, halves, scales], ())
                    frozen[name] = (halves, scales, _kw_stamped(weight))
        _KW_FUSION.memo(self).frozen = frozen
        return self

    def unfreeze(self):
        """Split the weights at every call again, and return self."""
        _KW_FUSION.memo(self).frozen = {}
        return self

    def _apply(self, *args, **kwargs):
        self.unfreeze()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        self.unfreeze()
        return super()._load_from_state_dict(*args, **kwargs)


def _kw_linear_hardtanh_mish_group_norm(
    batch, device, kept, x, gemm_weight, gemm_bias, bias, group_norm_weight, group_norm_bias
):
    """group_norm at gemm_bias_hardtanh_mish_groupnorm.py:19 in group_norm."""
    if _KW_GENERATED_GEMM and batch >= 2048 and _kw_capability(device) == (9, 0):
        left_halves = _kw_empty((1, ((batch + 63)//64), 4, 2, 64, 64), torch.float16, device)
        left_scales = _kw_empty((1, batch, 2), torch.float32, device)
        right_halves, right_scales = _kw_halves_of(kept, "gemm.weight", gemm_weight)
        frozen = right_halves is not None
        if not frozen:
            right_halves = _kw_empty((1, 4, 4, 2, 64, 64), torch.float16, device)
            right_scales = _kw_empty((1, 256, 2), torch.float32, device)
        progress = _kw_empty((5,), torch.int32, device)
        group_norm = _kw_empty((batch, 8, 32), torch.float32, device)
        tiles, clusters, early, _ = _kw_product_launch(
            batch, 1, (256, 256, (64, 2, 8), 2, True, 0), _kw_processors(device), frozen
        )
        _kw_launch(
            "linear_hardtanh_mish_group_norm", device,
            [
                x, gemm_weight, left_halves, left_scales, right_halves, right_scales, progress,
                gemm_bias, bias, group_norm_weight, group_norm_bias, group_norm,
            ],
            batch, tiles, clusters, early, frozen,
        )
    else:
        if _KW_GENERATED_GEMM and batch <= 128:
            gemm_product = _kw_empty((batch, 256), torch.float32, device)
            _kw_launch("gemm_product_few_rows", device, [x, gemm_weight, gemm_product], batch)
        else:
            gemm_product = torch.nn.functional.linear(x, gemm_weight)
        group_norm = _kw_empty((batch, 8, 32), torch.float32, device)
        _kw_launch(
            "add_bias_hardtanh_mish_group_norm", device,
            [gemm_product, gemm_bias, bias, group_norm_weight, group_norm_bias, group_norm],
            batch,
        )
    return group_norm


def _kw_fused(kept, x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    device = x.device
    if (
        _KW_GENERATED_GEMM
        and not (_KW_GENERATED_GEMM and batch >= 2048 and _kw_capability(device) == (9, 0))
        and batch <= 128
    ):
        group_norm = _kw_empty((batch, 8, 32), torch.float32, device)
        _kw_run(
            "forward", device,
            [x, gemm_weight, gemm_bias, bias, group_norm_weight, group_norm_bias, group_norm],
            batch,
        )
        return (group_norm,)
    group_norm = _kw_linear_hardtanh_mish_group_norm(
        batch, device, kept, x, gemm_weight, gemm_bias, bias, group_norm_weight, group_norm_bias
    )
    return (group_norm,)


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
    if torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    return None


def _kw_original(module, x):
    """What fused() computes, by the original forward."""
    batch = x.shape[0]
    outputs = Model.forward(module, x)
    return (outputs.reshape((batch, 8, 32)),)


def _kw_blank(x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 8, 32), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (256,), None),  # bias
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
    (("",), "Model", ("gemm", "hardtanh", "mish", "group_norm", "bias"), (), {}, {}),
    (
        ("gemm",),
        "torch.nn.modules.linear.Linear",
        ("weight", "bias"),
        (),
        {"in_features": 256, "out_features": 256},
        {},
    ),
    (
        ("hardtanh",),
        "torch.nn.modules.activation.Hardtanh",
        (),
        (),
        {"min_val": -1.0, "max_val": 1.0, "inplace": False},
        {},
    ),
    (("mish",), "torch.nn.modules.activation.Mish", (), (), {"inplace": False}, {}),
    (
        ("group_norm",),
        "torch.nn.modules.normalization.GroupNorm",
        ("weight", "bias"),
        (),
        {"num_groups": 8, "num_channels": 256, "eps": 1e-05, "affine": True},
        {},
    ),
)
