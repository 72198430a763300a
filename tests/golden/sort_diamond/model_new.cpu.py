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
        results = None
        if not torch.compiler.is_dynamo_compiling():
            results = _KW_FUSION.again(self, x)
        if results is None:
            memo, kind = _KW_FUSION.look(self, x)
            if kind.cause is not None:
                memo.fall_back(kind.cause)
                return Model.forward(_KW_FUSION.plain(self), x)
            results = _KW_FUSION.run(memo, kind, (x,))
        (mul,) = results
        return mul

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(run, x):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    softmax = run.empty((batch, 21), torch.float32)
    run.launch("softmax", [x, softmax], batch)
    sort = run.call(lambda softmax: torch.ops.aten.sort.default(softmax, 1, False), softmax)
    sort_result = run.call(lambda sort: sort[0], sort)
    mul = run.empty((batch, 21), torch.float32)
    run.launch("mul", [softmax, sort_result, mul], batch)
    return (mul,)


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
    if x.ndim != 2 or x.shape[1:] != (21,):
        return "x is not of shape batch x 21"
    if torch.is_autocast_enabled("cpu"):
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


def _kw_together():
    """All of this as one value, which ModelNew asks."""
    return _kw_Fusion(
        "kw_sort_diamond",
        device="cpu",
        kernels=_KW_KERNEL_LIBRARY,
        precision=_kw_Precision,
        switch=lambda: None,
        outside=_kw_outside,
        fused=_kw_fused,
        original=_kw_original,
        model=Model,
        blank=_kw_blank,
        state=_kw_state,
        baked_in=_KW_BAKED_IN,
        inputs=1,
        given=(0,),
        reaches=[(0,)],
        rewritten=[],
        recalled=[],
        random=False,
        refused=None,
        globals=False,
    )
