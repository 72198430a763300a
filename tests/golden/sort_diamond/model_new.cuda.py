class ModelNew(Model):
    """Where each operator of Model.forward went.

    softmax (sort_diamond.py:9)  fused into softmax; one kernel for 1 operator(s) over the same
                                 rows
    sort (sort_diamond.py:10)    left to ATen: sort.default; no primitive form of sort: it stays
                                 with ATen
    mul (sort_diamond.py:10)     fused into mul; one kernel for 1 operator(s), element by
                                 element
    """

    fallbacks = collections.Counter()

    def _fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in ModelNew.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        ModelNew.fallbacks[cause] += 1

    def _outside(self, x):
        """Why the kernels cannot take this call, or None when they can."""
        if not isinstance(x, torch.Tensor):
            return "x is not a tensor"
        if x.device.type != "cuda":
            return "x is not on a cuda device"
        if x.dtype != torch.float32:
            return "x is not float32"
        if x.ndim != 2 or x.shape[1:] != (21,):
            return "x is not of shape batch x 21"
        if torch.is_autocast_enabled("cuda"):
            return "autocast is on"
        if torch.is_grad_enabled():
            if x.requires_grad or any(p.requires_grad for p in self.parameters()):
                return "gradients are needed, and no backward was generated"
        return None

    def forward(self, x):
        cause = self._outside(x)
        if cause is not None:
            self._fall_back(cause)
            return super().forward(x)
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
        return mul
