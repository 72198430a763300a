class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (matmul_groupnorm_leakyrelu_sum.py:15)      left to ATen: linear.default; a library
                                                       contraction: 1.34e+08 flop, 2.36e+06
                                                       bytes
    linear (matmul_groupnorm_leakyrelu_sum.py:15)      fused into
                                                       bias_group_norm_leaky_relu_add; its bias:
                                                       one kernel for 4 operator(s) over the
                                                       same rows
    group_norm (matmul_groupnorm_leakyrelu_sum.py:15)  fused into
                                                       bias_group_norm_leaky_relu_add; one
                                                       kernel for 4 operator(s) over the same
                                                       rows
    leaky_relu (matmul_groupnorm_leakyrelu_sum.py:15)  fused into
                                                       bias_group_norm_leaky_relu_add; one
                                                       kernel for 4 operator(s) over the same
                                                       rows
    add (matmul_groupnorm_leakyrelu_sum.py:16)         fused into
                                                       bias_group_norm_leaky_relu_add; x + x =>
                                                       2 * x; one kernel for 4 operator(s) over
                                                       the same rows
    """

    fallbacks = collections.Counter()

    def _fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in ModelNew.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        ModelNew.fallbacks[cause] += 1

    state_types = (
        (torch.float32, (256, 256)),  # fc.weight
        (torch.float32, (256,)),  # fc.bias
        (torch.float32, (256,)),  # norm.weight
        (torch.float32, (256,)),  # norm.bias
    )

    def _outside(self, state, x):
        """Why the kernels cannot take this call, or None when they can."""
        if not isinstance(x, torch.Tensor):
            return "x is not a tensor"
        if x.device.type != "cpu":
            return "x is not on a cpu device"
        if x.dtype != torch.float32:
            return "x is not float32"
        if x.ndim != 2 or x.shape[1:] != (256,):
            return "x is not of shape batch x 256"
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
            self.fc.weight,
            self.fc.bias,
            self.norm.weight,
            self.norm.bias,
        )
        cause = self._outside(state, x)
        if cause is not None:
            self._fall_back(cause)
            return super().forward(x)
        (fc_weight, fc_bias, norm_weight, norm_bias) = state
        batch = x.shape[0]
        add = torch.empty((batch, 256), dtype=torch.float32, device=x.device)
        fc_product = torch.empty((min(batch, 4096), 256), dtype=torch.float32, device=x.device)
        for start in range(0, batch, 4096):
            stop = min(start + 4096, batch)
            panel = fc_product[: stop - start]
            torch.mm(x[start:stop], fc_weight.t(), out=panel)
            _launch(
                "bias_group_norm_leaky_relu_add",
                x.device,
                [panel, fc_bias, norm_weight, norm_bias, add[start:stop]],
                stop - start,
            )
        return add
