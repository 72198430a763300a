"""Small models for the museum, and candidates made of few words."""

from __future__ import annotations

LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return F.silu(self.linear(x))

def get_inputs():
    return [torch.rand(12, 16)]
"""

RELU = LINEAR.replace("F.silu(self.linear(x))", "torch.relu(self.linear(x)) + 0.5")

OF_ITS_OWN = f"# a file that no other candidate is compared with\n{LINEAR}"

CHANNELS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return F.silu(self.linear(x)) * 10.0 ** -torch.arange(8.0, dtype=x.dtype)

def get_inputs():
    return [torch.rand(12, 16)]
"""

ROWS = """
class Model(nn.Module):
    def forward(self, x):
        return x.cumsum(1)

def get_inputs():
    return [torch.rand(12, 5, 16) * 10.0 ** -torch.arange(12.0)[:, None, None]]
"""

NORM = """
class Model(nn.Module):
    def __init__(self, features=16, groups=4):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.GroupNorm(groups, features)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.linear(x)), 0.1)

def get_inputs():
    return [torch.rand(12, 16)]

def get_init_inputs():
    return [16, 4]
"""

BATCH_NORM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return F.softplus(self.norm(x))

def get_inputs():
    return [torch.rand(6, 3, 4, 4)]
"""

EVAL_NORM = BATCH_NORM.replace("nn.BatchNorm2d(3)", "nn.BatchNorm2d(3).eval(); self.eval()")

POINTWISE = """
class Model(nn.Module):
    def forward(self, x):
        return x.abs() * 2 + x

def get_inputs():
    return [torch.rand(4, 3, 5, 6)]
"""

SOFTMAX = """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.rand(12, 24)]
"""

LAYER_NORM = SOFTMAX.replace("torch.softmax(x, -1)", "F.layer_norm(x, x.shape[-1:])")

ARGMAX = """
class Model(nn.Module):
    def forward(self, x):
        values, places = x.max(1)
        return values, places

def get_inputs():
    return [torch.rand(12, 24)]
"""

IDENTITY = """
class Model(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], -1), x + 1

def get_inputs():
    return [torch.rand(4, 3, 5)]
"""

CHAINED = """
class Model(nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        return [y, y.amax(1)]

def get_inputs():
    return [torch.rand(12, 24)]
"""

CONV = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return torch.tanh(self.conv(x))

def get_inputs():
    return [torch.rand(3, 3, 7, 7)]
"""

GELU = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return F.gelu(self.linear(x))

def get_inputs():
    return [torch.randn(12, 16)]
"""

RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 12, batch_first=True)

    def forward(self, x):
        return torch.tanh(self.rnn(x)[0])

def get_inputs():
    return [torch.rand(6, 5, 8)]
"""

SCALE = """
class Model(nn.Module):
    def forward(self, x, scale=2.0):
        return torch.sin(x) * scale

def get_inputs():
    return [torch.rand(6, 8)]
"""

DROPOUT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.dropout = nn.Dropout(0.4)

    def forward(self, x):
        return self.dropout(self.linear(x))

def get_inputs():
    return [torch.rand(12, 16)]
"""

COUNTER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls

def get_inputs():
    return [torch.rand(6, 8)]
"""


def indented(code: str, by: int = 8) -> str:
    return code.strip("\n").replace("\n", "\n" + " " * by)


def forward(code: str, model: str = LINEAR, before: str = "", init: str = "") -> str:
    """A candidate with another forward; `before` stands before its class, `init` in __init__."""
    made = "    def __init__(self, *args):\n        super().__init__(*args)\n"
    made += f"        {indented(init)}\n"
    return (
        f"{model}\n{before}\nclass ModelNew(Model):\n{made if init else ''}"
        f"    def forward(self, x):\n        {indented(code)}\n"
    )
