class ModelNew(Model):
    """Where each operator of Model.forward went.

    conv2d (conv2d_min_tanh_tanh.py:13)  left to ATen: conv2d.default; a library contraction:
                                         2.17e+07 flop, 2.53e+06 bytes
    conv2d (conv2d_min_tanh_tanh.py:13)  fused into bias_min_tanh; its bias: one kernel for 4
                                         operator(s) over the same rows
    min (conv2d_min_tanh_tanh.py:13)     fused into bias_min_tanh; one kernel for 4 operator(s)
                                         over the same rows
    tanh (conv2d_min_tanh_tanh.py:14)    fused into bias_min_tanh; one kernel for 4 operator(s)
                                         over the same rows
    tanh (conv2d_min_tanh_tanh.py:14)    fused into bias_min_tanh; one kernel for 4 operator(s)
                                         over the same rows
    """

    fallbacks = collections.Counter()

    def _fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in ModelNew.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        ModelNew.fallbacks[cause] += 1

    state_types = (
        (torch.float32, (6, 4, 3, 3)),  # conv.weight
        (torch.float32, (6,)),  # conv.bias
    )

    def _outside(self, state, x):
        """Why the kernels cannot take this call, or None when they can."""
        if not isinstance(x, torch.Tensor):
            return "x is not a tensor"
        if x.device.type != "cuda":
            return "x is not on a cuda device"
        if x.dtype != torch.float32:
            return "x is not float32"
        if x.ndim != 4 or x.shape[1:] != (4, 9, 9):
            return "x is not of shape batch x 4 x 9 x 9"
        if not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
            return "x is in channels_last order"
        for tensor, (dtype, shape) in zip(state, self.state_types):
            if tensor.dtype != dtype or tensor.shape != shape:
                return "a parameter has another type or shape"
            if tensor.device != x.device:
                return "a parameter is on another device"
        if torch.is_autocast_enabled("cuda"):
            return "autocast is on"
        if torch.is_grad_enabled():
            if x.requires_grad or any(p.requires_grad for p in self.parameters()):
                return "gradients are needed, and no backward was generated"
        return None

    def forward(self, x):
        state = (
            self.conv.weight,
            self.conv.bias,
        )
        cause = self._outside(state, x)
        if cause is not None:
            self._fall_back(cause)
            return super().forward(x)
        (conv_weight, conv_bias) = state
        batch = x.shape[0]
        with _Precision():
            conv_product = torch.nn.functional.conv2d(x, conv_weight, None, (1, 1), (0, 0), (1, 1), 1)
        tanh_2 = torch.empty((batch, 1, 7, 7), dtype=torch.float32, device=x.device)
        _launch(
            "bias_min_tanh",
            x.device,
            [conv_product, conv_bias, tanh_2],
            batch,
        )
        return tanh_2
