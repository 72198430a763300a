class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (linear_sigmoid_linear_logsumexp.py:14)     left to ATen: linear.default; a library
                                                       contraction: 2.52e+06 flop, 2.96e+05
                                                       bytes
    linear (linear_sigmoid_linear_logsumexp.py:14)     fused into bias_sigmoid; its bias: one
                                                       kernel for 2 operator(s), element by
                                                       element
    sigmoid (linear_sigmoid_linear_logsumexp.py:14)    fused into bias_sigmoid; one kernel for 2
                                                       operator(s), element by element
    linear (linear_sigmoid_linear_logsumexp.py:15)     left to ATen: linear.default; a library
                                                       contraction: 6.47e+06 flop, 4.96e+05
                                                       bytes
    linear (linear_sigmoid_linear_logsumexp.py:15)     fused into bias_logsumexp; its bias: one
                                                       kernel for 2 operator(s) over the same
                                                       rows
    logsumexp (linear_sigmoid_linear_logsumexp.py:15)  fused into bias_logsumexp; one kernel for
                                                       2 operator(s) over the same rows
    """

    fallbacks = collections.Counter()

    def _fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in ModelNew.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        ModelNew.fallbacks[cause] += 1

    state_types = (
        (torch.float32, (41, 30)),  # linear.weight
        (torch.float32, (41,)),  # linear.bias
        (torch.float32, (77, 41)),  # second.weight
        (torch.float32, (77,)),  # second.bias
    )

    def _outside(self, state, x):
        """Why the kernels cannot take this call, or None when they can."""
        if not isinstance(x, torch.Tensor):
            return "x is not a tensor"
        if x.device.type != "cpu":
            return "x is not on a cpu device"
        if x.dtype != torch.float32:
            return "x is not float32"
        if x.ndim != 2 or x.shape[1:] != (30,):
            return "x is not of shape batch x 30"
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
            self.linear.weight,
            self.linear.bias,
            self.second.weight,
            self.second.bias,
        )
        cause = self._outside(state, x)
        if cause is not None:
            self._fall_back(cause)
            return super().forward(x)
        (linear_weight, linear_bias, second_weight, second_bias) = state
        batch = x.shape[0]
        linear_product = torch.nn.functional.linear(x, linear_weight)
        sigmoid = torch.empty((batch, 41), dtype=torch.float32, device=x.device)
        _launch(
            "bias_sigmoid",
            x.device,
            [linear_product, linear_bias, sigmoid],
            batch,
        )
        second_product = torch.nn.functional.linear(sigmoid, second_weight)
        logsumexp = torch.empty((batch, 1), dtype=torch.float32, device=x.device)
        _launch(
            "bias_logsumexp",
            x.device,
            [second_product, second_bias, logsumexp],
            batch,
        )
        return logsumexp.reshape((batch,))
