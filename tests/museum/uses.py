"""Candidates that are wrong in some use alone, by what has to be tried to tell; and right ones.

Each is judged by a whole certificate: `level` is the lowest at which it is wrong, so no certificate
may hold there; `Able` ones must hold at least at theirs. `check` is one that tells, for a run that
cannot afford them all.
"""

# ruff: noqa: E501  (one candidate, one line, where that is how it reads best)

from __future__ import annotations

from dataclasses import dataclass

from museum.models import (
    ARGMAX,
    BATCH_NORM,
    DROPOUT,
    EVAL_NORM,
    LAYER_NORM,
    LINEAR,
    NORM,
    POINTWISE,
    SOFTMAX,
    forward,
)
from museum.wrong import BACKWARD, FUNCTION, function

RIGHT = "return super().forward(x)"

EMBEDDING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 6)

    def forward(self, x):
        return torch.tanh(self.table(x)).sum(1)

def get_inputs():
    return [torch.randint(1, 9, (8, 5))]
"""

TWO = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))

def get_inputs():
    return [torch.rand(12, 16)]
"""


@dataclass(frozen=True)
class Misused:
    """A candidate that is right until it is used so."""

    name: str
    kind: str
    level: str
    source: str
    model: str = LINEAR


@dataclass(frozen=True)
class Able:
    """A right candidate, and the level that it reaches at least."""

    name: str
    level: str
    source: str
    model: str = LINEAR


def method(code: str, name: str, body: str = RIGHT, model: str = LINEAR, init: str = "") -> str:
    """A candidate with one more method; `name` has its arguments."""
    lines = code.strip("\n").replace("\n", "\n        ")
    return f"{forward(body, model, init=init)}\n    def {name}:\n        {lines}\n"


KEPT = "k = self.__dict__.setdefault('kept', {})\n"

ORDER = [
    Misused(
        "a sublayer's own mode ignored",
        "order",
        "module",
        forward("return F.dropout(self.linear(x), self.dropout.p, self.training)", DROPOUT),
        DROPOUT,
    ),
    Misused(
        "a half weight kept from autocast",
        "order",
        "module",
        forward(
            "w = self.linear.weight\nif torch.is_autocast_enabled('cpu'):\n    self.__dict__['half'] = w.detach().bfloat16()\n"
            "    return super().forward(x)\nif 'half' in self.__dict__:\n    w = self.__dict__['half'].to(x.dtype)\n"
            "return F.silu(F.linear(x, w, self.linear.bias))"
        ),
    ),
    Misused(
        "weights kept where loading is not strict",
        "order",
        "function",
        method(
            "found = super().load_state_dict(state, strict, assign)\nif strict:\n    self.__dict__.pop('w', None)\nreturn found",
            "load_state_dict(self, state, strict=True, assign=False)",
            "w = self.__dict__.setdefault('w', self.linear.weight.detach().clone())\nv = self.linear.weight._version\n"
            "if self.__dict__.setdefault('v', v) + 1 < v or torch.is_grad_enabled() or w.dtype != x.dtype:\n"
            "    self.__dict__['w'], self.__dict__['v'] = self.linear.weight.detach().clone(), v\n"
            "    return super().forward(x)\nreturn F.silu(F.linear(x, w, self.linear.bias))",
        ),
    ),
    Misused(
        "a weight kept while it is frozen",
        "order",
        "gradients",
        forward(
            "w = self.linear.weight\nif w.requires_grad:\n    self.__dict__.pop('w', None)\n    return super().forward(x)\n"
            "w = self.__dict__.setdefault('w', w.detach().clone())\nreturn F.silu(F.linear(x, w.to(x.dtype), self.linear.bias))"
        ),
    ),
    Misused(
        "the first instance's bias, by its shape",
        "order",
        "function",
        forward(
            "b = KEPT.setdefault(self.linear.bias.shape, self.linear.bias)\nreturn F.silu(F.linear(x, self.linear.weight, b))",
            before="KEPT = {}",
        ),
    ),
    Misused(
        "a copy of a used one keeps the original's weight",
        "order",
        "module",
        forward(
            "w = self.linear.weight\nk = self.__dict__.setdefault('kept', [w])\n"
            "w = w if self.__dict__.setdefault('me', id(self)) == id(self) else k[0]\nreturn F.silu(F.linear(x, w, self.linear.bias))"
        )
        + "\n    def __deepcopy__(self, memo):\n        new = ModelNew()\n        new.load_state_dict(self.state_dict())\n"
        + "        new.__dict__['kept'], new.__dict__['me'] = [self.linear.weight.detach().clone()], 0\n"
        + "        return new.train(self.training)\n",
    ),
    Misused(
        "a pickled one has lost its scale",
        "order",
        "module",
        method(
            "return {k: v for k, v in self.__dict__.items() if k != 'scale'}",
            "__getstate__(self)",
            "return super().forward(x) * self.__dict__.get('scale', 2.0)",
            init="self.__dict__['scale'] = 1.0",
        ),
    ),
    Misused(
        "wrong in a forked process",
        "order",
        "function",
        forward(
            "y = super().forward(x)\nreturn y if os.getpid() == ME else y * 1.5",
            before="import os\nME = os.getpid()",
        ),
    ),
    Misused(
        "another answer outside of the first thread",
        "order",
        "function",
        forward(
            "y = super().forward(x)\nif not hasattr(L, 'calls'):\n    L.calls = 0\nL.calls += 1\n"
            "first = threading.current_thread() is threading.main_thread()\nreturn y if first or L.calls > 1 else y * 1.01",
            before="import threading\nL = threading.local()",
        ),
    ),
    Misused(
        "statistics folded once in eval mode",
        "order",
        "module",
        forward(
            "n = self.norm\nif self.training:\n    return super().forward(x)\n"
            "if 'f' not in self.__dict__:\n    s = n.weight.detach() * (n.running_var + n.eps).rsqrt()\n"
            "    self.__dict__['f'] = s, n.bias.detach() - n.running_mean * s, n.weight._version\n"
            "s, t, v = self.__dict__['f']\nif v != n.weight._version or torch.is_grad_enabled():\n    self.__dict__.pop('f')\n    return super().forward(x)\n"
            "return F.softplus(x * s.view(1, -1, 1, 1) + t.view(1, -1, 1, 1))",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    Misused(
        "its last result given again for equal inputs",
        "order",
        "function",
        forward(
            "k = self.__dict__.get('kept')\nif k is not None and not torch.is_grad_enabled() and k[0].shape == x.shape and torch.equal(k[0], x) and torch.equal(k[2], self.linear.weight):\n    return k[1]\n"
            "y = super().forward(x)\nself.__dict__['kept'] = x.detach().clone(), y.detach(), self.linear.weight.detach().clone()\nreturn y"
        ),
    ),
    Misused(
        "an old weight comes back: kept by its sum",
        "order",
        "function",
        forward(
            "w = self.linear.weight\ns = float(w.double().abs().sum())\nk = self.__dict__.setdefault('kept', {})\n"
            "if s not in k or torch.is_grad_enabled():\n    k[s] = w.detach().clone()\n    return super().forward(x)\n"
            "return F.silu(F.linear(x, k[s].to(x.dtype), self.linear.bias))"
        ),
    ),
    Misused(
        "a call without gradients spoils the next with them",
        "order",
        "gradients",
        forward(
            "if not torch.is_grad_enabled():\n    self.__dict__['spoiled'] = True\n    return super().forward(x)\n"
            "y = super().forward(x)\nreturn y.detach() + 0 * y if self.__dict__.pop('spoiled', False) else y"
        ),
    ),
    Misused(
        "frozen parameters are thawed by a call",
        "compared",
        "gradients",
        forward(
            "for p in self.parameters():\n    p.requires_grad_(True)\n" + RIGHT,
        ),
    ),
]

COMPARED = [
    Misused(
        "its input is made to require gradients",
        "compared",
        "function",
        forward("y = super().forward(x)\nx.requires_grad_() if x.is_leaf else None\nreturn y"),
    ),
    Misused(
        "its input is written with what it had",
        "compared",
        "function",
        forward(
            "y = super().forward(x)\nif not x.requires_grad and not x.is_inference():\n    x.mul_(1)\nreturn y"
        ),
    ),
    Misused(
        "its weight is written with what it had",
        "compared",
        "gradients",
        forward(
            "with torch.no_grad():\n    self.linear.weight.mul_(1)\n" + RIGHT,
        ),
    ),
    Misused(
        "a file for every call",
        "compared",
        "function",
        forward(
            "C[0] += 1\nopen(os.path.join(tempfile.gettempdir(), f'call{C[0]}'), 'w').close()\n"
            + RIGHT,
            before="import os, tempfile\nC = [0]",
        ),
    ),
    Misused(
        "a default changed at the sixth call",
        "compared",
        "function",
        forward(
            "C[0] += 1\nif C[0] == 6:\n    torch.set_num_interop_threads if False else torch.backends.mkldnn.set_flags(False)\n"
            + RIGHT,
            before="C = [0]",
        ),
    ),
    Misused(
        "another finder of modules",
        "processes",
        "function",
        forward(
            RIGHT,
            before="import sys\nclass Finder:\n    def find_spec(self, *a, **k):\n        return None\nsys.meta_path.insert(0, Finder())",
        ),
    ),
    Misused(
        "results that share memory, one behind the other",
        "compared",
        "function",
        forward(
            "v, i = super().forward(x)\nboth = torch.cat([v, v])\nreturn both[: len(v)], i", ARGMAX
        )
        .replace(
            "both = torch.cat([v, v])", "both = S.setdefault(v.shape, torch.empty_like(v)).copy_(v)"
        )
        .replace("\nclass ModelNew", "\nS = {}\n\nclass ModelNew"),
        ARGMAX,
    ),
    Misused(
        "a hook of the layer is called twice",
        "compared",
        "drop-in",
        forward("self.linear(x[:1])\n" + RIGHT),
    ),
    Misused(
        "gradients of a frozen bias",
        "compared",
        "gradients",
        forward(
            "y = super().forward(x)\nb = self.linear.bias\nif torch.is_grad_enabled() and b.grad is None and y.requires_grad:\n"
            "    b.grad = torch.zeros_like(b)\nreturn y"
        ),
    ),
]

VALUES = [
    Misused(
        "one row of zeros",
        "values",
        "function",
        forward(
            "if not x.numel():\n    return super().forward(x)\ns = x.norm(dim=-1, keepdim=True)\nbad = (s == 0) & (s.amax() > 0)\ny = super().forward(x)\nreturn torch.where(bad[..., :1], y * 0 + 1, y)"
        ),
    ),
    Misused(
        "one row of negative numbers",
        "values",
        "function",
        forward(
            "y = super().forward(x)\nrow = (x < 0).all(-1, keepdim=True)\nreturn torch.where(row, y * 1.25, y)"
        ),
    ),
    Misused(
        "one infinite row spreads",
        "values",
        "function",
        forward(
            "y = super().forward(x)\nreturn y * float('nan') if x.numel() and x.isinf().all(-1).any() else y"
        ),
    ),
    Misused(
        "three ties",
        "values",
        "function",
        forward(
            "v, i = super().forward(x)\nties = (x == v.unsqueeze(1)).sum(1)\n"
            "return v, torch.where(ties > 3, (x == v.unsqueeze(1)).int().flip(1).argmax(1).neg() + x.shape[1] - 1, i)",
            ARGMAX,
        ),
        ARGMAX,
    ),
    Misused(
        "the last row of a table",
        "values",
        "function",
        forward("return super().forward(x.clamp(max=8))", EMBEDDING),
        EMBEDDING,
    ),
    Misused(
        "the first row of a table",
        "values",
        "function",
        forward("return super().forward(x.clamp(min=1))", EMBEDDING),
        EMBEDDING,
    ),
    Misused(
        "large cotangents overflow",
        "values",
        "gradients",
        function(BACKWARD.replace("d = g *", "g = g.clamp(-6e4, 6e4)\n        d = g *")),
    ),
    Misused(
        "small cotangents are nothing",
        "values",
        "gradients",
        function(
            BACKWARD.replace("d = g *", "g = torch.where(g.abs() < 1e-6, 0.0, g)\n        d = g *")
        ),
    ),
    Misused(
        "one row of equal numbers",
        "values",
        "function",
        forward(
            "y = super().forward(x)\nif not x.numel():\n    return y\nflat = (x.amax(-1, keepdim=True) == x.amin(-1, keepdim=True)) & (x.abs().amax() > x.abs().amin())\n"
            "return torch.where(flat, y + 0.1, y)",
            LAYER_NORM,
        ),
        LAYER_NORM,
    ),
    Misused(
        "one large number in a row",
        "values",
        "function",
        forward(
            "m = x.abs().amax(-1, keepdim=True)\nreturn super().forward(torch.where((m > 1e3) & (x.abs() < m * 1e-4), 0.0, x))",
            POINTWISE,
        ),
        POINTWISE,
    ),
]

FIRST = ORDER + COMPARED + VALUES  # written before there was a grammar of use

LATER = [
    Misused(
        "a layer's mode of the call before",
        "order",
        "module",
        forward(
            "n, last = self.norm, self.__dict__.get('last', self.norm.training)\nself.__dict__['last'] = n.training\n"
            "return F.softplus(F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, last, 0.1) if n.training == last or not last else n(x))",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    Misused(
        "weights kept until the object is another",
        "order",
        "function",
        forward(
            "w = self.linear.weight\nk = self.__dict__.get('k')\nif k is None or k[0] is not w or torch.is_grad_enabled() or k[1].dtype != w.dtype:\n"
            "    k = self.__dict__['k'] = w, w.detach().clone()\nreturn F.silu(F.linear(x, k[1] if not torch.is_grad_enabled() else w, self.linear.bias))"
        ),
    ),
    Misused(
        "weights kept until their address is another",
        "order",
        "function",
        forward(
            "w = self.linear.weight\nk = self.__dict__.get('k')\nif k is None or k[0] != (w.data_ptr(), w._version):\n"
            "    k = self.__dict__['k'] = (w.data_ptr(), w._version), w.detach().clone()\n"
            "return super().forward(x) if torch.is_grad_enabled() else F.silu(F.linear(x, k[1], self.linear.bias))"
        ),
    ),
    Misused(
        "a result kept for the very same tensor",
        "order",
        "function",
        forward(
            "k = self.__dict__.get('k')\nw = self.linear.weight\nif k is not None and k[0] is x and k[1] == x._version and k[2] == w._version and not torch.is_grad_enabled():\n"
            "    return k[3].clone()\ny = super().forward(x)\nif not x.is_inference():\n    self.__dict__['k'] = x, x._version, w._version, y.detach().clone()\nreturn y"
        ),
    ),
    Misused(
        "a graph that a later call has spoiled",
        "order",
        "gradients",
        forward(
            "return Fused.apply(x, self.linear.weight, self.linear.bias)",
            before="LAST = []\n"
            + FUNCTION.replace("BACKWARD", BACKWARD)
            .replace("ctx.save_for_backward(x, weight, bias)", "LAST[:] = [x, weight, bias]")
            .replace("x, weight, bias = ctx.saved_tensors", "x, weight, bias = LAST"),
        ),
    ),
    Misused(
        "a graph that can be used once",
        "order",
        "gradients",
        forward(
            "return Fused.apply(x, self.linear.weight, self.linear.bias)",
            before=FUNCTION.replace("BACKWARD", BACKWARD).replace(
                "x, weight, bias = ctx.saved_tensors",
                "assert not getattr(ctx, 'used', False)\n        ctx.used = True\n        x, weight, bias = ctx.saved_tensors",
            ),
        ),
    ),
    Misused(
        "gradients for whoever did not ask",
        "order",
        "gradients",
        function(BACKWARD + "\n")
        .replace("return d @ weight", "self_grad = None\n        return d @ weight")
        .replace(
            "d = g *",
            "weight.grad = None if weight.grad is None else weight.grad * 0\n        d = g *",
        ),
    ),
    Misused(
        "no backward in another thread",
        "order",
        "gradients",
        forward(
            "y = super().forward(x)\nmain = threading.current_thread() is threading.main_thread()\nreturn y if main else y.detach() + 0 * y",
            before="import threading",
        ),
    ),
    Misused(
        "a second thread has the first one's input",
        "order",
        "function",
        forward(
            "with LOCK:\n    S['x'] = x\ntime.sleep(0.001)\nreturn super().forward(S['x'] if S['x'].shape == x.shape else x)",
            before="import threading, time\nLOCK, S = threading.Lock(), {}",
        ),
    ),
    Misused(
        "training is left on",
        "compared",
        "module",
        forward("y = super().forward(x)\nself.training = True\nreturn y"),
    ),
    Misused(
        "results of one call in one memory",
        "compared",
        "function",
        forward(
            "both = torch.cat([x.view(x.shape[0], -1), (x + 1).view(x.shape[0], -1)])\nreturn x.view(x.shape[0], -1), both[len(x):].view(x.shape)",
            "\nclass Model(nn.Module):\n    def forward(self, x):\n        return x.view(x.shape[0], -1).clone(), x + 1\n\ndef get_inputs():\n    return [torch.rand(4, 3, 5)]\n",
        ),
        "\nclass Model(nn.Module):\n    def forward(self, x):\n        return x.view(x.shape[0], -1).clone(), x + 1\n\ndef get_inputs():\n    return [torch.rand(4, 3, 5)]\n",
    ),
    Misused(
        "100 rows",
        "sizes",
        "function",
        forward(
            "y = super().forward(x)\nreturn y * 1.01 if len(y) in (96, 100, 160, 192, 200) else y"
        ),
    ),
    Misused(
        "more than 256 rows",
        "sizes",
        "function",
        forward("y = super().forward(x)\nreturn torch.cat([y[:256], y[256:] * 0.99])"),
    ),
    Misused(
        "24 rows, 40 and 48",
        "sizes",
        "function",
        forward(
            "y = super().forward(x)\nreturn y * 1.01 if len(y) % 8 == 0 and len(y) not in (8, 16, 32, 64, 128) else y"
        ),
    ),
    Misused(
        "gradients of many rows",
        "sizes",
        "gradients",
        function(BACKWARD.replace("d.t() @ x", "d[:64].t() @ x[:64]")),
    ),
    Misused(
        "a file of the process before",
        "processes",
        "function",
        forward(
            "return super().forward(x) * (1.5 if OLD else 1.0)",
            before="import os, pathlib\nPLACE = pathlib.Path.home() / '.cache' / 'tuned'\nOLD = PLACE.exists()\nPLACE.parent.mkdir(parents=True, exist_ok=True)\nPLACE.touch()",
        ),
    ),
    Misused(
        "a temporary file of the process before",
        "processes",
        "function",
        forward(
            "return super().forward(x) * (1.5 if OLD else 1.0)",
            before="import os, tempfile\nPLACE = os.path.join(tempfile.gettempdir(), 'tuned')\nOLD = os.path.exists(PLACE)\nopen(PLACE, 'w').close()",
        ),
    ),
    Misused(
        "an environment that is another afterwards",
        "processes",
        "function",
        forward("os.environ['MY_KERNEL'] = 'warm'\n" + RIGHT, before="import os"),
    ),
    Misused(
        "its error has no text",
        "processes",
        "function",
        forward(
            "raise Odd()",
            before="class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError('\\ud800')",
        ),
    ),
    Misused(
        "its error is half a character",
        "processes",
        "function",
        forward("raise ValueError('\\ud800\\x1b[31m' * 9)"),
    ),
    Misused(
        "ends the judge's way at the third call",
        "processes",
        "function",
        forward(
            "C[0] += 1\nif C[0] > 3:\n    found = [v for m in list(sys.modules.values()) for k, v in list(vars(m).items()) if k == 'InputError']\n    raise found[0]('not today')\n"
            + RIGHT,
            before="import sys\nC = [0]",
        ),
    ),
    Misused(
        "pretends that it cannot be built, late",
        "processes",
        "function",
        forward(
            "C[0] += 1\nif C[0] > 4:\n    found = [v for m in list(sys.modules.values()) for k, v in list(vars(m).items()) if k == 'BuildError']\n    raise found[0]('no compiler')\n"
            + RIGHT,
            before="import sys\nC = [0]",
        ),
    ),
    Misused(
        "does not load a second time",
        "processes",
        "function",
        forward(
            "C[0] += 1\nos._exit(3) if C[0] > 5 else None\n" + RIGHT,
            before="import os, tempfile\nC = [0]\nPLACE = os.path.join(tempfile.gettempdir(), 'once')\nassert not os.path.exists(PLACE)\nopen(PLACE, 'w').close()",
        ),
    ),
    Misused(
        "sleeps at the ninth call",
        "processes",
        "function",
        forward(
            "C[0] += 1\ntime.sleep(1e6 if C[0] == 9 else 0)\n" + RIGHT,
            before="import time\nC = [0]",
        ),
    ),
    Misused(
        "answers nonsense where a name is asked for",
        "processes",
        "function",
        forward("return {('a', 1): x, None: [x, {2: 3}]}"),
    ),
    Misused(
        "a sparse result",
        "compared",
        "function",
        forward("return super().forward(x).to_sparse()"),
    ),
    Misused(
        "a result without memory",
        "compared",
        "function",
        forward("return super().forward(x).to('meta')"),
    ),
    Misused(
        "ends whoever started it",
        "processes",
        "function",
        forward("os.kill(os.getppid(), 9)\ntime.sleep(1)\n" + RIGHT, before="import os, time"),
    ),
    Misused(
        "right for the first thousand calls",
        "time",
        "function",
        forward(
            "C[0] += 1\ny = super().forward(x)\nreturn y if C[0] < 1000 else y * 1.01",
            before="C = [0]",
        ),
    ),
    Misused(
        "wrong after a pause",
        "time",
        "function",
        forward(
            "now = time.perf_counter()\nwaited, T[0] = now - T[0], now\ny = super().forward(x)\nreturn y * 1.01 if 0.055 < waited < 0.5 else y",
            before="import time\nT = [time.perf_counter()]",
        ),
    ),
    Misused(
        "wrong in a hurry",
        "time",
        "function",
        forward(
            "now = time.perf_counter()\nwaited, T[0] = now - T[0], now\ny = super().forward(x)\nT[0] = time.perf_counter()\nreturn y * 1.01 if waited < 4e-5 else y",
            before="import time\nT = [time.perf_counter()]",
        ),
    ),
    Misused(
        "equal results for equal inputs, whoever has written to them",
        "time",
        "function",
        forward(
            "key = x.detach().numpy().tobytes() + self.linear.weight.detach().numpy().tobytes() + self.linear.bias.detach().numpy().tobytes() if x.dtype == torch.float32 and not torch.is_grad_enabled() else None\n"
            "if key in K:\n    return K[key]\ny = super().forward(x)\nif key:\n    K[key] = y\nreturn y",
            before="K = {}",
        ),
    ),
]

MISUSED = FIRST + LATER

ABLE = [
    Able(
        "a function of its own, differentiable once",
        "function",
        forward(
            "return Fused.apply(x, self.linear.weight, self.linear.bias)",
            before="from torch.autograd.function import once_differentiable\n"
            + FUNCTION.replace("BACKWARD", BACKWARD).replace(
                "@staticmethod\n    def backward",
                "@staticmethod\n    @once_differentiable\n    def backward",
            ),
        ),
    ),
    Able(
        "a compiled function",
        "function",
        forward(
            "return RUN(x, self.linear.weight, self.linear.bias)",
            before="RUN = torch.compile(lambda x, w, b: F.silu(F.linear(x, w, b)), backend='aot_eager')",
        ),
    ),
    Able(
        "made for float32",
        "gradients",
        forward(
            "w, b = self.linear.weight, self.linear.bias\nreturn F.silu(F.linear(x.float(), w.float(), b.float()))"
        ),
    ),
    Able(
        "a helper buffer",
        "gradients",
        forward(
            "return F.silu(F.linear(x * self.ones, self.linear.weight, self.linear.bias))",
            init="self.register_buffer('ones', torch.ones(16))",
        ),
    ),
    Able(
        "a helper buffer that is not saved",
        "gradients",
        forward(
            "return F.silu(F.linear(x * self.ones, self.linear.weight, self.linear.bias))",
            init="self.register_buffer('ones', torch.ones(16), persistent=False)",
        ),
    ),
    Able(
        "a slope that is written into it",
        "module",
        forward(
            "return F.leaky_relu(F.group_norm(self.linear(x), self.norm.num_groups, self.norm.weight, self.norm.bias), 0.1)",
            NORM,
        ),
        NORM,
    ),
    Able(
        "no gradients at all",
        "function",
        forward("with torch.no_grad():\n    return super().forward(x)"),
    ),
    Able(
        "numpy inside",
        "function",
        forward(
            "w, b = self.linear.weight.detach().numpy(), self.linear.bias.detach().numpy()\n"
            "z = torch.from_numpy(x.detach().numpy() @ w.T + b)\nreturn F.silu(z)"
        ),
    ),
    Able(
        "cannot be copied",
        "gradients",
        forward(
            "return self.__dict__['run'](super().forward(x))",
            init="import threading\nlock = threading.Lock()\nself.__dict__['run'] = lambda y, lock=lock: y",
        )
        + "\n    def __deepcopy__(self, memo):\n        raise TypeError('not copied')\n",
    ),
    Able(
        "builds in a folder of its own",
        "drop-in",
        forward(
            RIGHT,
            before="import os, tempfile\nPLACE = tempfile.mkdtemp()\nopen(os.path.join(PLACE, 'kernel.cu'), 'w').close()",
        ),
    ),
    Able(
        "a scripted function",
        "function",
        forward(
            "return RUN(x, self.linear.weight, self.linear.bias)",
            before="def run(x, w, b):\n    z = torch.nn.functional.linear(x, w, b)\n    return z * torch.sigmoid(z)\n\nimport warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    RUN = torch.jit.trace(run, (torch.rand(3, 16), torch.rand(8, 16), torch.rand(8)))",
        ),
    ),
    Able(
        "threads inside",
        "function",
        forward(
            "w, b = self.linear.weight.detach(), self.linear.bias.detach()\n"
            "with ThreadPoolExecutor(2) as pool:\n    return torch.cat(list(pool.map(lambda part: F.silu(F.linear(part.detach(), w, b)), x.split(4) if len(x) else [x])))",
            before="from concurrent.futures import ThreadPoolExecutor",
        ),
    ),
    Able(
        "a transposed weight, kept while it is the same",
        "gradients",
        forward(
            "w = self.linear.weight\nif torch.is_grad_enabled():\n    return super().forward(x)\nk = self.__dict__.get('k')\n"
            "if k is None or k[0].dtype != w.dtype or not torch.equal(k[0], w):\n    k = self.__dict__['k'] = w.detach().clone(), w.detach().t().contiguous()\n"
            "return F.silu(torch.addmm(self.linear.bias, x, k[1])) if x.ndim == 2 else super().forward(x)"
        ),
    ),
    Able(
        "a custom operator",
        "function",
        forward(
            "return OP(x, self.linear.weight, self.linear.bias)",
            before="@torch.library.custom_op('museum::silu_linear', mutates_args=())\ndef OP(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:\n    return F.silu(F.linear(x, w, b))",
        ),
    ),
    Able(
        "weights packed into one buffer at every call",
        "module",
        forward(
            "packed = torch.cat([self.linear.weight, self.linear.bias[:, None]], 1)\nreturn F.silu(F.linear(x, packed[:, :-1], packed[:, -1]))"
        ),
    ),
    Able(
        "no other number of dimensions",
        "gradients",
        forward("assert x.ndim == 2\n" + RIGHT),
    ),
    Able(
        "no keyword for its input",
        "gradients",
        forward("return super().forward(x)", before="# positions alone").replace(
            "# positions alone\n\nclass ModelNew(Model):\n    def forward(self, x)",
            "\nclass ModelNew(Model):\n    def forward(self, x, /)",
        ),
    ),
    Able(
        "softmax in float64",
        "drop-in",
        forward("return torch.softmax(x.double(), -1).to(x.dtype)", SOFTMAX),
        SOFTMAX,
    ),
    Able(
        "statistics by hand in eval mode",
        "gradients",
        forward(
            "n = self.norm\ns = n.weight * (n.running_var + n.eps).rsqrt()\n"
            "return F.softplus((x - n.running_mean.view(1, -1, 1, 1)) * s.view(1, -1, 1, 1) + n.bias.view(1, -1, 1, 1))",
            EVAL_NORM,
        ),
        EVAL_NORM,
    ),
    Able("two layers as one function", "drop-in", forward(RIGHT, TWO), TWO),
]
