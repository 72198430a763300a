def state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return ()


def written(module):
    """The buffers that a call changes."""
    return ()


def outside(state, x):
    """Why the kernels cannot take this call, or None when they can."""
    cause = transformed(None)
    if cause is not None:
        return cause
    if not is_ordinary(x):
        return "x is not a plain tensor"
    if x.device.type != "cpu":
        return "x is not on a cpu device"
    if x.dtype != torch.float32:
        return "x is not float32"
    if x.ndim != 2 or x.shape[1:] != (21,):
        return "x is not of shape batch x 21"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return None


def fused(memo, x):
    """The kernels: inputs and state in, results out."""
    batch = x.shape[0]
    softmax = torch.empty((batch, 21), dtype=torch.float32, device=x.device)
    _launch(
        "softmax",
        x.device,
        [x, softmax],
        batch,
    )
    sort = torch.ops.aten.sort.default(softmax, 1, False)
    sort_result = sort[0]
    mul = torch.empty((batch, 21), dtype=torch.float32, device=x.device)
    _launch(
        "mul",
        x.device,
        [softmax, sort_result, mul],
        batch,
    )
    return (mul,)


def blank(x):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 21), dtype=torch.float32, device=x.device),)


def original(module, x):
    """What fused() computes, by the original forward."""
    outputs = Model.forward(module, x)
    return (outputs,)


# What tracing took for granted, module by module: place, class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
BAKED_IN = (
    ("", "Model", (), (), {}, {}),
)

FUSION = Fusion(
    "kw_sort_diamond",
    fused=fused,
    original=original,
    blank=blank,
    state=state,
    written=written,
    baked_in=BAKED_IN,
    inputs=1,
    reaches=[(0,)],
    rewritten=[],
    recalled=[],
    random=False,
    refused=None,
    globals=False,
)


class ModelNew(Model):
    """Where each operator of Model.forward went.

    softmax (sort_diamond.py:9)  fused into softmax; one kernel for 1 operator(s) over the same
                                 rows
    sort (sort_diamond.py:10)    left to ATen: sort.default; no primitive form of sort: it stays
                                 with ATen
    mul (sort_diamond.py:10)     fused into mul; one kernel for 1 operator(s), element by
                                 element
    """

    def __new__(cls, *args, **kwargs):
        return FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo = FUSION.memo(self)
        cause = memo.cause or outside(memo.state, x)
        if cause is not None:
            memo.fall_back(cause)
            return super().forward(x)
        (mul,) = FUSION.run(memo, (x,))
        return mul

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return FUSION.memo(self).fallbacks
