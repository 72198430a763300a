class ModelNew(Model):
    """Where each operator of Model.forward went.

    gelu (half_gelu_group_norm.py:15)        fused into gelu_group_norm_mul; one kernel for 3
                                             operator(s) over the same rows
    group_norm (half_gelu_group_norm.py:15)  fused into gelu_group_norm_mul; one kernel for 3
                                             operator(s) over the same rows
    mul (half_gelu_group_norm.py:15)         fused into gelu_group_norm_mul; one kernel for 3
                                             operator(s) over the same rows
    """

    fallbacks = collections.Counter()

    def _fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in ModelNew.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        ModelNew.fallbacks[cause] += 1

    state_types = (
        (torch.float16, (64,)),  # norm.weight
        (torch.float16, (64,)),  # norm.bias
    )

    def _outside(self, state, x):
        """Why the kernels cannot take this call, or None when they can."""
        if not isinstance(x, torch.Tensor):
            return "x is not a tensor"
        if x.device.type != "cpu":
            return "x is not on a cpu device"
        if x.dtype != torch.float16:
            return "x is not float16"
        if x.ndim != 2 or x.shape[1:] != (64,):
            return "x is not of shape batch x 64"
        for tensor, (dtype, shape) in zip(state, self.state_types):
            if tensor.dtype != dtype or tensor.shape != shape:
                return "a parameter has another type or shape"
            if tensor.device != x.device:
                return "a parameter is on another device"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on"
        if torch.is_grad_enabled():
            if x.requires_grad or any(p.requires_grad for p in self.parameters()):
                return "gradients are needed, and no backward was generated"
        return None

    def forward(self, x):
        state = (
            self.norm.weight,
            self.norm.bias,
        )
        cause = self._outside(state, x)
        if cause is not None:
            self._fall_back(cause)
            return super().forward(x)
        (norm_weight, norm_bias) = state
        batch = x.shape[0]
        mul = torch.empty((batch, 64), dtype=torch.float16, device=x.device)
        _launch(
            "gelu_group_norm_mul",
            x.device,
            [x, norm_weight, norm_bias, mul],
            batch,
        )
        return mul
