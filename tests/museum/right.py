"""Right candidates that are unusual: none of them may be refused."""

# ruff: noqa: E501  (one candidate, one line, where that is how it reads best)

from __future__ import annotations

from dataclasses import dataclass

from museum.models import (
    BATCH_NORM,
    CHAINED,
    CONV,
    DROPOUT,
    EVAL_NORM,
    GELU,
    LINEAR,
    NORM,
    POINTWISE,
    RECURRENT,
    SOFTMAX,
    forward,
)
from museum.wrong import BACKWARD, function


@dataclass(frozen=True)
class Right:
    """A candidate and its model."""

    name: str
    source: str
    model: str = LINEAR


STATISTICS = """
n, axes, shape = self.norm, (0, 2, 3), (1, -1, 1, 1)
if self.training:
    count = x.numel() / x.shape[1]
    mean = x.mean(axes)
    var = (x - mean.view(shape)).square().mean(axes)
    with torch.no_grad():
        n.num_batches_tracked += 1
        n.running_mean.mul_(1 - n.momentum).add_(n.momentum * mean)
        n.running_var.mul_(1 - n.momentum).add_(n.momentum * var * (count / (count - 1)))
else:
    mean, var = n.running_mean, n.running_var
y = (x - mean.view(shape)) * torch.rsqrt(var + n.eps).view(shape)
return F.softplus(y * n.weight.view(shape) + n.bias.view(shape))
"""

ONLINE = """
m = torch.full_like(x[..., :1], -torch.inf)
s = torch.zeros_like(m)
for part in x.split(5, -1):
    new = torch.maximum(m, part.amax(-1, keepdim=True))
    s = s * torch.exp(m - new) + torch.exp(part - new).sum(-1, keepdim=True)
    m = new
return torch.exp(x - m) / s
"""

GROUPS = """
y = self.linear(x)
g = y.reshape(y.shape[0], self.norm.num_groups, y.shape[1] // self.norm.num_groups)
mean = g.mean(-1, keepdim=True)
g = (g - mean) * torch.rsqrt((g - mean).square().mean(-1, keepdim=True) + self.norm.eps)
z = g.reshape(y.shape) * self.norm.weight + self.norm.bias
return torch.maximum(z, z * 0.1)
"""

CHANNELS_LAST = """
last = torch.channels_last
w = self.conv.weight.contiguous(memory_format=last)
y = torch.tanh(self.conv._conv_forward(x.contiguous(memory_format=last), w, self.conv.bias))
kept = x.is_contiguous(memory_format=last) and not x.is_contiguous()
return y if kept else y.contiguous()
"""

RIGHT = [
    Right("the model itself", LINEAR + "class ModelNew(Model):\n    pass\n"),
    Right(
        "by hand",
        forward("z = x @ self.linear.weight.t() + self.linear.bias\nreturn z * torch.sigmoid(z)"),
    ),
    Right(
        "addmm", forward("return F.silu(torch.addmm(self.linear.bias, x, self.linear.weight.t()))")
    ),
    Right(
        "einsum",
        forward(
            "return F.silu(torch.einsum('nk,mk->nm', x, self.linear.weight) + self.linear.bias)"
        ),
    ),
    Right(
        "summed from the other end",
        forward("return F.silu(F.linear(x.flip(1), self.linear.weight.flip(1), self.linear.bias))"),
    ),
    Right(
        "summed in halves",
        forward(
            "w = self.linear.weight\nhalf = w.shape[1] // 2\n"
            "return F.silu(F.linear(x[:, :half], w[:, :half]) + F.linear(x[:, half:], w[:, half:], self.linear.bias))"
        ),
    ),
    Right(
        "one column at a time",
        forward(
            "w, b = self.linear.weight, self.linear.bias\n"
            "return F.silu(torch.stack([(x * w[i]).sum(1) + b[i] for i in range(len(b))], 1))"
        ),
    ),
    Right(
        "float64 inside",
        forward(
            "w, b = self.linear.weight.double(), self.linear.bias.double()\n"
            "return F.silu(F.linear(x.double(), w, b)).to(x.dtype)"
        ),
    ),
    Right(
        "a compiled wrapper",
        forward(
            "return self.__dict__['run'](x)",
            init="self.__dict__['run'] = torch.compile(self.plain, backend='eager')",
        )
        + "\n    def plain(self, x):\n        return F.silu(self.linear(x))\n\n"
        + "    def told(self):\n        asked = [p.requires_grad for p in self.parameters()]\n"
        + "        return self.state_dict(), asked, [m.training for m in self.modules()]\n\n"
        + "    def __deepcopy__(self, memo):\n        return _rebuilt(*self.told()).to(self.linear.weight.dtype)\n\n"
        + "    def __reduce__(self):\n        return _rebuilt, self.told()\n\n"
        + "def _rebuilt(state, asked, training):\n    new = ModelNew()\n    new.load_state_dict(state)\n"
        + "    for p, wanted in zip(new.parameters(), asked):\n        p.requires_grad_(wanted)\n"
        + "    for m, mode in zip(new.modules(), training):\n        m.training = mode\n    return new\n",
    ),
    Right("a backward of its own", function(BACKWARD)),
    Right("prints", forward("print('\\x1b[31mhello', x.shape)\nreturn super().forward(x)")),
    Right(
        "a workspace, used and given back",
        forward(
            "z = self.linear(x)\nif torch.is_grad_enabled():\n    return F.silu(z)\n"
            "space = torch.empty_like(z).copy_(z)\nreturn F.silu(space)"
        ),
    ),
    Right(
        "no subclass of the model",
        """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return F.silu(self.linear(x))
""",
    ),
    Right(
        "weights given by another name",
        forward("return F.silu(F.linear(x, **dict(self.linear.named_parameters())))"),
    ),
    Right(
        "other things printed and imported",
        forward(
            "return super().forward(x)",
            before="import json, logging, threading\nlogging.basicConfig()",
        ),
    ),
    Right("group norm by hand", forward(GROUPS, NORM), NORM),
    Right(
        "group norm by layer norm",
        forward(
            "y = self.linear(x)\ng = y.reshape(y.shape[0], self.norm.num_groups, y.shape[1] // self.norm.num_groups)\n"
            "g = F.layer_norm(g, g.shape[-1:], eps=self.norm.eps).reshape(y.shape)\n"
            "return F.leaky_relu(g * self.norm.weight + self.norm.bias, 0.1)",
            NORM,
        ),
        NORM,
    ),
    Right("batch norm by hand", forward(STATISTICS, BATCH_NORM), BATCH_NORM),
    Right(
        "batch norm folded",
        forward(
            "n = self.norm\nif self.training:\n    return super().forward(x)\n"
            "scale = n.weight * torch.rsqrt(n.running_var + n.eps)\nshift = n.bias - n.running_mean * scale\n"
            "return F.softplus(x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1))",
            EVAL_NORM,
        ),
        EVAL_NORM,
    ),
    Right("online softmax", forward(ONLINE, SOFTMAX), SOFTMAX),
    Right("softmax of the log", forward("return F.log_softmax(x, -1).exp()", SOFTMAX), SOFTMAX),
    Right("channels_last inside", forward(CHANNELS_LAST, CONV), CONV),
    Right(
        "rows and columns exchanged",
        forward("return F.silu((self.linear.weight @ x.t()).t() + self.linear.bias).contiguous()"),
    ),
    Right(
        "erf by hand",
        forward(
            "z = self.linear(x)\nreturn 0.5 * z * (1 + torch.erf(z * 0.7071067811865476))", GELU
        ),
        GELU,
    ),
    Right(
        "pointwise in another order",
        forward(
            "return torch.abs(x) + (x + torch.abs(x))",
            POINTWISE,
        ),
        POINTWISE,
    ),
    Right(
        "results that are not of each other",
        forward("return [torch.tanh(x), torch.tanh(x).amax(1)]", CHAINED),
        CHAINED,
    ),
    Right(
        "a layer called on parts of the batch",
        forward("return torch.cat([super(ModelNew, self).forward(part) for part in x.split(5)])"),
    ),
    Right(
        "a recurrence, and tanh by hand",
        forward(
            "y = self.rnn(x)[0]\nreturn 1 - 2 / (torch.exp(2 * y) + 1)",
            RECURRENT,
        ),
        RECURRENT,
    ),
    Right(
        "eager's own dropout",
        forward("return F.dropout(self.linear(x), self.dropout.p, self.training)", DROPOUT),
        DROPOUT,
    ),
]
