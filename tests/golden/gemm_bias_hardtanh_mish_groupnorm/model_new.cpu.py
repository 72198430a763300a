class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (gemm_bias_hardtanh_mish_groupnorm.py:17)      left to ATen: linear.default; a
                                                          library contraction: 1.34e+08 flop,
                                                          2.36e+06 bytes
    linear (gemm_bias_hardtanh_mish_groupnorm.py:17)      fused into
                                                          add_bias_hardtanh_mish_group_norm; its
                                                          bias: one kernel for 5 operator(s)
                                                          over the same rows
    add (gemm_bias_hardtanh_mish_groupnorm.py:17)         fused into
                                                          add_bias_hardtanh_mish_group_norm;
                                                          linear(x, W, b) + c => linear(x, W, b
                                                          + c); one kernel for 5 operator(s)
                                                          over the same rows
    hardtanh (gemm_bias_hardtanh_mish_groupnorm.py:18)    fused into
                                                          add_bias_hardtanh_mish_group_norm; one
                                                          kernel for 5 operator(s) over the same
                                                          rows
    mish (gemm_bias_hardtanh_mish_groupnorm.py:18)        fused into
                                                          add_bias_hardtanh_mish_group_norm; one
                                                          kernel for 5 operator(s) over the same
                                                          rows
    group_norm (gemm_bias_hardtanh_mish_groupnorm.py:19)  fused into
                                                          add_bias_hardtanh_mish_group_norm; one
                                                          kernel for 5 operator(s) over the same
                                                          rows
    """

    fallbacks = collections.Counter()

    def _fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in ModelNew.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        ModelNew.fallbacks[cause] += 1

    state_types = (
        (torch.float32, (256,)),  # bias
        (torch.float32, (256, 256)),  # gemm.weight
        (torch.float32, (256,)),  # gemm.bias
        (torch.float32, (256,)),  # group_norm.weight
        (torch.float32, (256,)),  # group_norm.bias
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
            self.bias,
            self.gemm.weight,
            self.gemm.bias,
            self.group_norm.weight,
            self.group_norm.bias,
        )
        cause = self._outside(state, x)
        if cause is not None:
            self._fall_back(cause)
            return super().forward(x)
        (bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias) = state
        batch = x.shape[0]
        group_norm = torch.empty((batch, 8, 32), dtype=torch.float32, device=x.device)
        gemm_product = torch.empty((min(batch, 4096), 256), dtype=torch.float32, device=x.device)
        for start in range(0, batch, 4096):
            stop = min(start + 4096, batch)
            panel = gemm_product[: stop - start]
            torch.mm(x[start:stop], gemm_weight.t(), out=panel)
            _launch(
                "add_bias_hardtanh_mish_group_norm",
                x.device,
                [panel, gemm_bias, bias, group_norm_weight, group_norm_bias, group_norm[start:stop]],
                stop - start,
            )
        return group_norm.reshape((batch, 256))
