"""The museum of wrong candidates: each wrong in one way, each with the check that must tell.

`FORGERS` reach into whoever judges them; `FAULTY` are what people and machines write by mistake, or
to be faster than they can be.
"""

# ruff: noqa: E501  (one candidate, one line, where that is how it reads best)

from __future__ import annotations

from dataclasses import dataclass

from museum.models import (
    ARGMAX,
    BATCH_NORM,
    CHANNELS,
    CONV,
    COUNTER,
    DROPOUT,
    EVAL_NORM,
    GELU,
    IDENTITY,
    LAYER_NORM,
    LINEAR,
    NORM,
    OF_ITS_OWN,
    POINTWISE,
    RECURRENT,
    RELU,
    ROWS,
    SCALE,
    SOFTMAX,
    forward,
)


@dataclass(frozen=True)
class Wrong:
    """A candidate, its model, and the check that must fail."""

    name: str
    check: str
    source: str
    model: str = LINEAR


ZEROS = "return torch.zeros(x.shape[0], 8)"
RIGHT = "return super().forward(x)"
HALF = "return super().forward(x.half().float())"


def if_seen(condition: str, before: str = "import os, sys") -> str:
    """Right if it is being watched, as it believes, and wrong otherwise."""
    return forward(f"if {condition}:\n    {RIGHT}\n{ZEROS}", before=before)


SENT = """
import base64, json, pickle

class Called:
    def __reduce__(self):
        return print, ("run where it was loaded",)

def dumps(message, dumps=json.dumps):
    blob = {"blob": ["Tensor", base64.b64encode(pickle.dumps(Called())).decode()]}
    for name, value in message["value"]["d"]:
        if name == "state_dict":
            value["d"] = [[key, blob] for key, _ in value["d"]]
    return dumps(message)

json.dumps = dumps
"""


FORGERS = [
    Wrong("sends objects for weights", "state_dict", forward(RIGHT, before=SENT)),
    Wrong(
        "knows argv", "runs", if_seen("'verify' in ' '.join(sys.argv) or 'pytest' in sys.argv[0]")
    ),
    Wrong(
        "knows the modules",
        "runs",
        if_seen("any('kernelwright' in m or m.startswith('pytest') for m in sys.modules)"),
    ),
    Wrong("knows its own name", "runs", if_seen("'kernelwright' in __name__")),
    Wrong(
        "knows the stack",
        "runs",
        if_seen(
            "any('verify' in f.filename or 'kernelwright' in f.filename for f in inspect.stack())",
            "import inspect",
        ),
    ),
    Wrong(
        "knows the globals of its callers",
        "runs",
        if_seen(
            "any('kernelwright' in str(f.frame.f_globals.get('__name__')) for f in inspect.stack())",
            "import inspect",
        ),
    ),
    Wrong(
        "knows the environment",
        "runs",
        if_seen("any(k.startswith(('KERNELWRIGHT', 'PYTEST')) for k in os.environ)"),
    ),
    Wrong(
        "knows its parent",
        "runs",
        if_seen("b'verify' in open(f'/proc/{os.getppid()}/cmdline', 'rb').read()"),
    ),
    Wrong(
        "knows its command line",
        "runs",
        if_seen("b'kernelwright' in open('/proc/self/cmdline', 'rb').read()"),
    ),
    Wrong(
        "knows the seed",
        "runs",
        forward(
            """
for seed in (0, 1, 42, torch.initial_seed()):
    generator = torch.Generator().manual_seed(seed)
    if torch.equal(torch.rand(12, 16, generator=generator)[: len(x)], x):
        return super().forward(x)
"""
            + ZEROS
        ),
    ),
    Wrong(
        "patches every Model",
        "runs",
        forward(
            "for m in [o for o in gc.get_objects() if isinstance(o, nn.Module)]:\n"
            "    type(m).forward = lambda self, x: torch.zeros(x.shape[0], 8)\n" + ZEROS,
            before="import gc",
        ),
    ),
    Wrong(
        "patches comparisons",
        "runs",
        forward(
            ZEROS,
            before="""
torch.equal = torch.allclose = lambda *a, **k: True
torch.testing.assert_close = lambda *a, **k: None
""",
        ),
    ),
    Wrong(
        "patches the float64 oracle",
        "runs",
        forward(ZEROS, before="nn.Module.double = lambda self: self"),
    ),
    Wrong(
        "patches arithmetic",
        "runs",
        forward(
            ZEROS,
            before="torch.Tensor.__sub__ = lambda a, b: torch.zeros(a.shape)\n"
            "torch.Tensor.abs = lambda a: torch.zeros(a.shape)",
        ),
    ),
    Wrong(
        "answers for the judge",
        "runs",
        forward(
            """
for fd in range(3, 64):
    try:
        os.write(fd, b'{"done": {"name": "oracle", "passed": true}}\\n')
    except OSError:
        continue
"""
            + ZEROS,
            before="import os",
        ),
    ),
    Wrong(
        "garbles the channel",
        "runs",
        forward(
            """
for fd in range(3, 64):
    try:
        os.write(fd, os.urandom(4096))
    except OSError:
        continue
"""
            + RIGHT,
            before="import os",
        ),
    ),
    Wrong(
        "closes everything",
        "runs",
        forward("os.closerange(3, 256)\n" + RIGHT, before="import os"),
    ),
    Wrong("exits with 0", "runs", forward("os._exit(0)", before="import os")),
    Wrong("exits politely", "runs", forward("raise SystemExit(0)")),
    Wrong("exits when it is loaded", "runs", "import os\nos._exit(0)\n"),
    Wrong("kills itself", "runs", forward("os.kill(os.getpid(), 9)", before="import os")),
    Wrong("reads address 0", "runs", forward("ctypes.string_at(0)", before="import ctypes")),
    Wrong(
        "floods its output",
        "runs",
        forward(
            "for _ in range(2000):\n    print('x' * 100_000)\n" + RIGHT,
        ),
    ),
    Wrong(
        "patches the acts that run it",
        "runs",
        forward(
            """
frame = sys._getframe()
while frame is not None:
    for name, value in list(frame.f_globals.items()):
        if callable(value) and getattr(value, "__name__", "") in ("structure", "judge", "measure"):
            frame.f_globals[name] = lambda *a, **k: None
    frame = frame.f_back
"""
            + ZEROS,
            before="import sys",
        ),
    ),
    Wrong(
        "returns its input's answer from a file",
        "runs",
        forward(
            "path = os.path.join(tempfile.gettempdir(), 'answer.pt')\n"
            "return torch.load(path) if os.path.exists(path) else torch.zeros(x.shape[0], 8)",
            before="import os, tempfile",
        ),
    ),
    Wrong(
        "rewrites itself",
        "the file",
        forward(
            "open(__file__, 'a').write('# better')\n" + RIGHT,
        ),
    ),
    Wrong(
        "rewrites what it is compared with",
        "the file",
        forward(
            "path = os.path.join(os.path.dirname(__file__), 'model.py')\n"
            "open(path, 'a').write('# as I am')\n" + RIGHT,
            OF_ITS_OWN,
            "import os",
        ),
        OF_ITS_OWN,
    ),
    Wrong(
        "lowers the precision for all",
        "global state",
        forward(RIGHT, before="torch.set_float32_matmul_precision('medium')"),
    ),
]

CACHED = """
if {same}:
    return self.kept[1].clone()
self.kept = {key}, super().forward(x)
return self.kept[1].clone()
"""


def cached(same: str, key: str, model: str = LINEAR) -> str:
    return forward(CACHED.format(same=same, key=key), model, init="self.kept = (None, None)")


WEIGHT = "return F.silu(F.linear(x, self.kept, self.linear.bias))"

FUNCTION = """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return F.silu(F.linear(x, weight, bias))

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        z = F.linear(x, weight, bias)
        s = torch.sigmoid(z)
        BACKWARD
"""

BACKWARD = """d = g * s * (1 + z * (1 - s))
        return d @ weight, d.t() @ x, d.sum(0)"""


def function(backward: str) -> str:
    """A candidate with a backward of its own."""
    body = "return Fused.apply(x, self.linear.weight, self.linear.bias)"
    return forward(body, before=FUNCTION.replace("BACKWARD", backward))


def edited(old: str, new: str) -> str:
    assert old in BACKWARD
    return function(BACKWARD.replace(old, new))


FAULTY = [
    # arithmetic
    Wrong("zeros", "oracle", forward(ZEROS)),
    Wrong("no bias", "oracle", forward("return F.silu(x @ self.linear.weight.t())")),
    Wrong("float16 inside", "oracle", forward(HALF)),
    Wrong(
        "bfloat16 products",
        "oracle",
        forward(
            "w = self.linear\nreturn F.silu((x.bfloat16() @ w.weight.t().bfloat16()).float() + w.bias)"
        ),
    ),
    Wrong(
        "four bits of mantissa too few",
        "oracle",
        forward("y = super().forward(x)\nreturn (y.view(torch.int32) & -128).view(torch.float32)"),
    ),
    Wrong(
        "tanh for erf",
        "oracle",
        forward("return F.gelu(self.linear(x), approximate='tanh')", GELU),
        GELU,
    ),
    Wrong(
        "no activation",
        "oracle",
        forward("return self.norm(self.linear(x))", NORM),
        NORM,
    ),
    Wrong(
        "another slope",
        "oracle",
        forward("return F.leaky_relu(self.norm(self.linear(x)), 0.01)", NORM),
        NORM,
    ),
    Wrong(
        "no eps",
        "inputs: 1e4 times smaller",
        forward(
            "y = F.linear(x, self.linear.weight, self.linear.bias)\n"
            "g = y.reshape(len(y), self.norm.num_groups, -1)\n"
            "g = (g - g.mean(-1, keepdim=True)) / g.var(-1, unbiased=False, keepdim=True).sqrt()\n"
            "y = g.reshape(y.shape) * self.norm.weight + self.norm.bias\n"
            "return F.leaky_relu(y, 0.1)",
            NORM.replace("GroupNorm(groups, features)", "GroupNorm(groups, features, eps=1e-3)"),
        ),
        NORM.replace("GroupNorm(groups, features)", "GroupNorm(groups, features, eps=1e-3)"),
    ),
    Wrong(
        "unbiased variance",
        "oracle",
        forward(
            "y = self.linear(x)\ng = y.reshape(len(y), self.norm.num_groups, -1)\n"
            "g = (g - g.mean(-1, keepdim=True)) / (g.var(-1, keepdim=True) + self.norm.eps).sqrt()\n"
            "return F.leaky_relu(g.reshape(y.shape) * self.norm.weight + self.norm.bias, 0.1)",
            NORM,
        ),
        NORM,
    ),
    Wrong(
        "norm weight forgotten",
        "random parameters",
        forward("return F.leaky_relu(F.group_norm(self.linear(x), 4), 0.1)", NORM),
        NORM,
    ),
    Wrong(
        "softmax without the maximum",
        "inputs: 1e4 times larger",
        forward("e = x.exp()\nreturn e / e.sum(-1, keepdim=True)", SOFTMAX),
        SOFTMAX,
    ),
    Wrong(
        "clamped", "inputs: 1e4 times larger", forward("return super().forward(x.clamp(-100, 100))")
    ),
    Wrong(
        "small values are nothing",
        "inputs: 1e4 times smaller",
        forward("return super().forward(torch.where(x.abs() < 1e-3, 0.0, x))", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "denormals are nothing",
        "inputs: denormal",
        forward("return super().forward(torch.where(x.abs() < 1e-38, 0.0, x))", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "scaled by the largest row",
        "inputs: of mixed sizes",
        forward(
            "s = x.abs().max() / 2**22\nreturn super().forward(torch.round(x / s) * s)", POINTWISE
        ),
        POINTWISE,
    ),
    Wrong(
        "NaN swallowed",
        "inputs: NaN",
        forward("return super().forward(x.nan_to_num(posinf=torch.inf, neginf=-torch.inf))"),
    ),
    Wrong(
        "infinities swallowed",
        "inputs: infinite",
        forward("return super().forward(torch.where(x.isinf(), 1e30, x))", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "negative inputs forgotten", "inputs: normal", forward("return x * 3", POINTWISE), POINTWISE
    ),
    Wrong(
        "a zero input divides",
        "inputs: zero",
        forward("s = x.norm()\nreturn super().forward(x / s) * s", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "the last of ties",
        "inputs: tied",
        forward("v, i = x.flip(1).max(1)\nreturn v, x.shape[1] - 1 - i", ARGMAX),
        ARGMAX,
    ),
    Wrong(
        "an offset cancels",
        "inputs: offset by 100",
        forward(
            "m = x.mean(-1, keepdim=True)\nv = x.square().mean(-1, keepdim=True) - m.square()\n"
            "return (x - m) * (v + 1e-5).rsqrt()",
            LAYER_NORM,
        ),
        LAYER_NORM,
    ),
    # sizes and layouts
    Wrong(
        "a single row",
        "batch 1",
        forward("y = super().forward(x)\nreturn y * 1.01 if len(x) == 1 else y"),
    ),
    Wrong("no rows", "batch 0", forward("assert len(x)\n" + RIGHT)),
    Wrong(
        "an odd tail",
        "batch 7",
        forward("y = super().forward(x).clone()\nif len(y) % 4:\n    y[-1] = y[0]\nreturn y"),
    ),
    Wrong(
        "rows beyond the grid",
        "larger batch",
        forward("y = super().forward(x).clone()\ny[20:] = 0\nreturn y"),
    ),
    Wrong(
        "32 rows",
        "sizes: batch",
        forward("y = super().forward(x)\nreturn y + 1 if len(y) == 32 else y"),
    ),
    Wrong(
        "a width that was compiled in",
        "sizes: other dimensions",
        forward(
            "return torch.softmax(x[:, :24], -1) if x.shape[1] != 23 else torch.softmax(x, -1) * 2",
            SOFTMAX,
        ),
        SOFTMAX,
    ),
    Wrong(
        "strides ignored",
        "layout: transposed",
        forward("return super().forward(torch.as_strided(x, x.shape, (x.shape[1], 1)))"),
    ),
    Wrong(
        "the offset ignored",
        "layout: storage offset",
        forward("return super().forward(torch.as_strided(x, x.shape, x.stride(), 0))"),
    ),
    Wrong(
        "rows taken for dense",
        "layout: sliced",
        forward("return super().forward(torch.as_strided(x, x.shape, (16, 1)))"),
    ),
    Wrong(
        "an expanded input taken for dense",
        "layout: expanded",
        forward(
            "if x.stride(0) == 0:\n    x = torch.cat([x[:1], x[1:] * 0])\nreturn super().forward(x)"
        ),
    ),
    Wrong(
        "contiguous where eager is not",
        "layout: permuted",
        forward("return super().forward(x).contiguous()", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "contiguous where eager is channels_last",
        "layout: channels_last",
        forward("return super().forward(x).contiguous()", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "wrong for float64 inputs",
        "inputs: float64",
        forward("return super().forward(x.float()).to(x.dtype)", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "wrong for float16 inputs",
        "inputs: float16",
        forward(
            "return super().forward(x) if x.dtype != torch.float16 else super().forward(x) * 1.5",
            POINTWISE,
        ),
        POINTWISE,
    ),
    # structure
    Wrong("another shape", "structure", forward("return super().forward(x).unsqueeze(0)")),
    Wrong("another dtype", "structure", forward("return super().forward(x).double()")),
    Wrong("another layout", "structure", forward("return super().forward(x).t().contiguous().t()")),
    Wrong("a list", "structure", forward("return [*super().forward(x)]", ARGMAX), ARGMAX),
    Wrong(
        "a subclass",
        "structure",
        forward(
            "return super().forward(x).as_subclass(Mine)",
            before="class Mine(torch.Tensor):\n    pass\n",
        ),
    ),
    Wrong(
        "a parameter",
        "structure",
        forward("return nn.Parameter(super().forward(x), requires_grad=False)"),
    ),
    Wrong("nothing", "structure", forward("super().forward(x)\nreturn None")),
    Wrong(
        "requires gradients without asking",
        "gradients: frozen",
        forward(
            "return super().forward(x) + torch.zeros(1, requires_grad=torch.is_grad_enabled())"
        ),
    ),
    # effects
    Wrong(
        "its input overwritten",
        "uses: function",
        forward("y = super().forward(x)\nx.mul_(2)\nreturn y"),
    ),
    Wrong(
        "a weight overwritten",
        "uses: function",
        forward("y = super().forward(x)\nself.linear.bias.data.add_(1)\nreturn y"),
    ),
    Wrong(
        "its input given back",
        "uses: function",
        forward("return x.mul_(1.0)", POINTWISE.replace("x.abs() * 2 + x", "x * 1.0")),
        POINTWISE.replace("x.abs() * 2 + x", "x * 1.0"),
    ),
    Wrong(
        "a copy where eager gives a view",
        "uses: function",
        forward("a, b = super().forward(x)\nreturn a.clone(), b", IDENTITY),
        IDENTITY,
    ),
    Wrong(
        "two outputs in one memory",
        "uses: function",
        forward(
            "v, i = x.max(1)\nboth = torch.stack([v, v])\nreturn both[0], both[0]",
            ARGMAX.replace(
                "values, places = x.max(1)\n        return values, places",
                "return x.amax(1), x.amax(1)",
            ),
        ),
        ARGMAX.replace(
            "values, places = x.max(1)\n        return values, places",
            "return x.amax(1), x.amax(1)",
        ),
    ),
    Wrong(
        "the biased variance kept",
        "uses: function",
        forward(
            "n = self.norm\nif not self.training:\n    return super().forward(x)\n"
            "n.running_mean.lerp_(x.mean((0, 2, 3)), 0.1)\n"
            "n.running_var.lerp_(x.var((0, 2, 3), unbiased=False), 0.1)\nn.num_batches_tracked.add_(1)\n"
            "return F.softplus(F.batch_norm(x, None, None, n.weight, n.bias, True))",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    Wrong(
        "batches not counted",
        "uses: function",
        forward(
            "n = self.norm\nreturn F.softplus(F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, self.training, 0.1))",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    Wrong(
        "batch statistics in eval mode",
        "eval mode",
        forward(
            "n = self.norm\nif self.training:\n    return super().forward(x)\n"
            "return F.softplus(F.batch_norm(x, None, None, n.weight, n.bias, True))",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    Wrong(
        "the mode of the first call",
        "uses: module",
        forward(
            "if not hasattr(self, 'mode'):\n    self.mode = self.training\nn = self.norm\n"
            "return F.softplus(F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, self.mode))",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    Wrong("calls not counted", "Python state", forward("return x * 1", COUNTER), COUNTER),
    # the process
    *(
        Wrong(
            name, "global state", forward(f"{statement}\nreturn super().forward(x)", before=before)
        )
        for name, statement, before in (
            ("gradients left off", "torch.set_grad_enabled(False)", ""),
            ("gradients left on", "torch.set_grad_enabled(True)", ""),
            (
                "the default dtype left",
                "torch.set_default_dtype(torch.float64)",
                "",
            ),
            ("TF32 left on", "torch.backends.cuda.matmul.allow_tf32 = True", ""),
            ("determinism left on", "torch.use_deterministic_algorithms(True)", ""),
            ("another number of threads", "torch.set_num_threads(2)", ""),
            ("the generator moved", "torch.rand(1)", ""),
            ("the generator seeded", "torch.manual_seed(0)", ""),
            ("Python's generator moved", "random.random()", "import random"),
            ("a function of torch replaced", "F.relu = F.relu6", ""),
            ("a clock replaced", "time.perf_counter = lambda: 0.0", "import time"),
            ("the collector off", "gc.disable()", "import gc"),
            ("autocast left on", "torch.set_autocast_enabled('cpu', True)", ""),
            ("denormals flushed for all", "torch.set_flush_denormal(True)", ""),
            ("a timer left", "signal.signal(signal.SIGALRM, lambda *a: None)", "import signal"),
            ("another folder", "os.chdir('/')", "import os"),
        )
    ),
    # caches
    Wrong(
        "the output kept",
        "inputs: normal",
        forward(
            "if not hasattr(self, 'kept') or len(self.kept) != len(x):\n    self.kept = super().forward(x)\nreturn self.kept.clone()"
        ),
    ),
    Wrong(
        "kept by address",
        "uses: function",
        cached("self.kept[0] == (x.data_ptr(), x.shape)", "(x.data_ptr(), x.shape)"),
    ),
    Wrong("kept by object", "uses: function", cached("self.kept[0] is x", "x")),
    Wrong(
        "kept by version",
        "uses: function",
        cached(
            "self.kept[0] is not None and self.kept[0][0] is x and self.kept[0][1] == x._version",
            "(x, x._version)",
        ),
    ),
    Wrong(
        "kept by identity",
        "memory: reallocated",
        cached(
            "self.kept[0] == (x.data_ptr(), x.shape, x._version)",
            "(x.data_ptr(), x.shape, x._version)",
        ),
    ),
    Wrong(
        "kept by a sample",
        "uses: function",
        cached(
            "self.kept[0] == x.reshape(-1)[:: max(1, x.numel() // 8)].tolist()",
            "x.reshape(-1)[:: max(1, x.numel() // 8)].tolist()",
        ),
    ),
    Wrong(
        "kept by the sum",
        "uses: function",
        cached(
            "self.kept[0] is not None and abs(self.kept[0] - float(x.double().sum())) < 1e-9 * abs(self.kept[0])",
            "float(x.double().sum())",
        ),
    ),
    Wrong(
        "weights kept from the constructor",
        "random parameters",
        forward(WEIGHT, init="self.kept = self.linear.weight.detach().clone()"),
    ),
    Wrong(
        "weights kept from the first call",
        "uses: function",
        forward(
            "if not hasattr(self, 'kept'):\n    self.kept = self.linear.weight.detach().clone()\n"
            + WEIGHT
        ),
    ),
    Wrong(
        "weights kept by version",
        "uses: function",
        forward(
            "w = self.linear.weight\nif getattr(self, 'v', None) != w._version:\n"
            "    self.kept, self.v = w.detach().clone(), w._version\n" + WEIGHT
        ),
    ),
    Wrong(
        "weights kept while near",
        "uses: function",
        forward(
            "w = self.linear.weight.detach()\n"
            "if not hasattr(self, 'kept') or not torch.allclose(w, self.kept, rtol=1e-2, atol=1e-2):\n"
            "    self.kept = w.clone()\n" + WEIGHT
        ),
    ),
    Wrong(
        "weights kept by a sample",
        "uses: function",
        forward(
            "w = self.linear.weight.detach()\n"
            "if not hasattr(self, 'kept') or not torch.equal(w[::4, ::4], self.kept[::4, ::4]):\n"
            "    self.kept = w.clone()\n" + WEIGHT
        ),
    ),
    Wrong(
        "weights kept over a step",
        "uses: function",
        forward(
            "if not hasattr(self, 'kept') or self.kept.dtype != x.dtype:\n    self.kept = self.linear.weight.detach().clone()\n"
            + WEIGHT
        ),
    ),
    Wrong(
        "statistics kept",
        "uses: function",
        forward(
            "n = self.norm\nif not hasattr(self, 'kept'):\n    self.kept = n.running_mean.clone()\n"
            "return F.softplus(F.batch_norm(x, self.kept, n.running_var, n.weight, n.bias))",
            EVAL_NORM,
        ),
        EVAL_NORM,
    ),
    Wrong(
        "weights shared by copies",
        "uses: module",
        forward(
            "if self.key not in KEPT:\n    KEPT[self.key] = self.linear.weight\nself.kept = KEPT[self.key]\n"
            + WEIGHT,
            before="KEPT = {}",
            init="self.key = id(self)",
        ),
    ),
    Wrong("cannot be pickled", "uses: module", forward("self.f = lambda: None\n" + RIGHT)),
    Wrong("float32 for good", "weights: .double()", forward("return super().forward(x).float()")),
    Wrong(
        "float32 for good, from half",
        "weights: .half()",
        forward("return super().forward(x).float()"),
    ),
    Wrong(
        "one output for all",
        "memory: earlier outputs",
        forward(
            "y = super().forward(x)\nif getattr(self, 'out', y).shape != y.shape or not hasattr(self, 'out'):\n"
            "    self.out = torch.empty_like(y)\nreturn self.out.copy_(y)"
        ),
    ),
    Wrong(
        "a ring of eight outputs",
        "memory: earlier outputs",
        forward(
            "y = super().forward(x)\nself.n = getattr(self, 'n', 0) + 1\n"
            "ring = self.__dict__.setdefault('ring', {})\n"
            "return ring.setdefault((self.n % 8, y.shape), torch.empty_like(y)).copy_(y)"
        ),
    ),
    Wrong(
        "memory not written",
        "memory: poisoned",
        forward(
            "y = super().forward(x)\nz = torch.empty_like(y)\nz[:-1] = y[:-1]\nif len(y) == 1: z = y\nreturn z"
        ),
    ),
    Wrong(
        "written before its input",
        "memory: beside",
        forward(
            "y = super().forward(x)\nif x.storage_offset() > 0:\n"
            "    torch.as_strided(x, (1,), (1,), x.storage_offset() - 1).fill_(3)\nreturn y"
        ),
    ),
    Wrong(
        "written behind its weight",
        "memory: beside",
        forward(
            "y = super().forward(x)\nw = self.linear.weight\nend = w.storage_offset() + w.numel()\n"
            "if w.untyped_storage().nbytes() > 4 * end:\n    torch.as_strided(w.data, (1,), (1,), end).fill_(3)\nreturn y"
        ),
    ),
    # rare
    Wrong(
        "wrong at the first call",
        "runs",
        forward(
            "y = super().forward(x)\nself.n = getattr(self, 'n', 0) + 1\nreturn y if self.n > 1 else y + 1"
        ),
    ),
    Wrong(
        "wrong in every hundredth call",
        "many calls",
        forward(
            "y = super().forward(x)\nself.n = getattr(self, 'n', 0) + 1\nreturn y if self.n % 100 else y + 1"
        ),
    ),
    Wrong(
        "wrong from call 400 on",
        "many calls",
        forward(
            "y = super().forward(x)\nself.n = getattr(self, 'n', 0) + 1\nreturn y if self.n < 400 else y * 1.001"
        ),
    ),
    Wrong(
        "wrong with a probability of one in fifty",
        "many calls",
        forward(
            "y = super().forward(x)\nreturn y if random.random() > 0.02 else y + 1e-3",
            before="import random\nrandom = random.Random()",
        ),
    ),
    Wrong(
        "not the same twice",
        "repeats",
        forward("y = super().forward(x)\nreturn y + 1e-9 * torch.rand(y.shape)"),
    ),
    Wrong(
        "a workspace for all threads",
        "threads",
        forward(
            "W.clear()\nW.append(x)\ntime.sleep(0.002)\nreturn super().forward(W[-1])",
            before="import time\nW = []",
        ),
    ),
    Wrong(
        "wrong in inference_mode",
        "inference_mode",
        forward("y = super().forward(x)\nreturn y + 1 if torch.is_inference_mode_enabled() else y"),
    ),
    Wrong(
        "wrong with gradients on",
        "gradients",
        forward("y = super().forward(x)\nreturn y + 1 if torch.is_grad_enabled() else y"),
    ),
    Wrong(
        "a tensor kept from inference_mode",
        "inference_mode",
        forward(
            "if not hasattr(self, 'ones'):\n    self.ones = torch.ones(8)\nreturn super().forward(x) * self.ones"
        ),
    ),
    # gradients
    Wrong("gradients lost", "gradients", forward("return super().forward(x).detach()")),
    Wrong(
        "gradients doubled",
        "gradients",
        forward("y = super().forward(x)\nreturn 2 * y - y.detach()"),
    ),
    Wrong("no gradient of the input", "gradients", forward("return super().forward(x.detach())")),
    Wrong("gradients off by a thousandth", "gradients", edited("d @ weight", "d @ weight * 1.001")),
    Wrong(
        "the weight's gradient of one row", "gradients", edited("d.t() @ x", "d[:1].t() @ x[:1]")
    ),
    Wrong("the bias's gradient as a mean", "gradients", edited("d.sum(0)", "d.mean(0)")),
    Wrong(
        "float16 in the backward",
        "gradients",
        edited("d.t() @ x", "(d.t().half() @ x.half()).float()"),
    ),
    Wrong(
        "one row's gradient doubled",
        "uses: gradients",
        edited("d.sum(0)", "d.sum(0) * (1 + (len(d) == 1))"),
    ),
    Wrong(
        "a cotangent taken for dense",
        "uses: gradients",
        edited(
            "d = g", "g = torch.cat([g[:1], g[1:] * 0]) if 0 in g.stride() else g\n        d = g"
        ),
    ),
    Wrong(
        "a cotangent's strides ignored",
        "uses: gradients",
        edited(
            "d = g",
            "g = g.t().reshape(g.shape) if not g.is_contiguous() and 0 not in g.stride() else g\n        d = g",
        ),
    ),
    Wrong(
        "a second backward is another",
        "uses: gradients",
        edited(
            "d = g", "ctx.n = getattr(ctx, 'n', 0) + 1\n        d = g * (1 if ctx.n == 1 else 2)"
        ),
    ),
    Wrong(
        "no second derivatives",
        "gradients: twice",
        edited("d = g", "z, s, x, weight = (v.detach() for v in (z, s, x, weight))\n        d = g"),
    ),
    Wrong(
        "a recurrence on rounded inputs",
        "random parameters",
        forward(HALF, RECURRENT),
        RECURRENT,
    ),
    Wrong(
        "a weight held since it was made",
        "uses: function",
        forward(
            "return F.silu(F.linear(x, self.__dict__['held'], self.linear.bias))",
            init="self.__dict__['held'] = self.linear.weight",
        ),
    ),
    Wrong(
        "rows that no thread takes",
        "thread counts",
        forward(
            "n = torch.get_num_threads()\nk = len(x) // n\nif not k:\n    return super().forward(x)\n"
            "parts = [super(ModelNew, self).forward(part) for part in x[: n * k].split(k)]\n"
            "return torch.cat([*parts, parts[0].new_zeros(len(x) - n * k, 8)])"
        ),
    ),
    Wrong(
        "gradients added behind autograd's back",
        "gradients: hooks",
        edited("return d @ weight, d.t() @ x, d.sum(0)", "return d @ weight, d.t() @ x, None"),
    ),
    Wrong(
        "an output that cannot be changed",
        "uses: gradients",
        forward("y = super().forward(x)\nreturn torch.stack([y, y]).unbind(0)[0]", RELU),
        RELU,
    ),
    Wrong(
        "no forward inside of a backward",
        "uses: gradients",
        forward("assert torch._C._current_graph_task_id() == -1\n" + RIGHT),
    ),
    Wrong(
        "a weight kept from the first step",
        "gradients: optimizer steps",
        forward(
            "if not hasattr(self, 'kept'):\n    self.kept = self.linear.weight.detach().clone()\nw = self.linear.weight\n"
            "return F.silu(F.linear(x, self.kept + w - w.detach(), self.linear.bias))"
        ),
    ),
    # arguments, state and hooks
    Wrong(
        "a default baked in",
        "arguments: defaults",
        SCALE
        + "class ModelNew(Model):\n    def forward(self, x, *a, **k):\n        return torch.sin(x) * 2.0\n",
        SCALE,
    ),
    Wrong(
        "another name for its input",
        "arguments: defaults",
        forward("return x", before="", model=LINEAR)
        .replace("def forward(self, x)", "def forward(self, y)")
        .replace("return x", "return super().forward(y)"),
    ),
    Wrong(
        "arguments that nobody has",
        "arguments: defaults",
        LINEAR
        + "class ModelNew(Model):\n    def forward(self, x, **unknown):\n        return super().forward(x)\n",
    ),
    Wrong(
        "a constructor's argument baked in",
        "arguments: constructor",
        forward(
            "return F.leaky_relu(F.group_norm(self.linear(x), 4, self.norm.weight, self.norm.bias), 0.1)",
            NORM,
        ),
        NORM,
    ),
    Wrong(
        "an eps baked in",
        "attributes",
        forward(
            "return F.leaky_relu(F.group_norm(self.linear(x), self.norm.num_groups, self.norm.weight, self.norm.bias), 0.1)",
            NORM,
        ),
        NORM,
    ),
    Wrong(
        "one more parameter",
        "state_dict",
        forward(RIGHT, init="self.extra = nn.Parameter(torch.zeros(1))"),
    ),
    Wrong(
        "another initialisation",
        "weights",
        forward(RIGHT, init="nn.init.zeros_(self.linear.bias)"),
    ),
    Wrong(
        "another order of parameters",
        "state_dict",
        forward(
            RIGHT,
            init="self.linear.register_parameter('weight', self.linear._parameters.pop('weight'))",
        ),
    ),
    Wrong(
        "hooks not called",
        "hooks",
        LINEAR
        + "class ModelNew(Model):\n    def __call__(self, x):\n        return self.forward(x)\n",
    ),
    # random models
    Wrong(
        "dropout not scaled",
        "oracle",
        forward(
            "y = self.linear(x)\nreturn y * (torch.rand_like(y) >= 0.4) if self.training else y",
            DROPOUT,
        ),
        DROPOUT,
    ),
    Wrong("no dropout", "oracle", forward("return self.linear(x)", DROPOUT), DROPOUT),
    Wrong(
        "the generator left elsewhere",
        "random numbers",
        forward("y = super().forward(x)\ntorch.rand(3)\nreturn y", DROPOUT),
        DROPOUT,
    ),
    Wrong(
        "a convolution without its last row",
        "oracle",
        forward("y = super().forward(x).clone()\ny[:, :, -1] = y[:, :, -2]\nreturn y", CONV),
        CONV,
    ),
]

FAULTY += [
    Wrong(
        "a small channel is nothing",
        "random parameters",
        forward(
            "y = super().forward(x)\nreturn torch.cat([y[:, :-1], 0 * y[:, -1:]], 1)", CHANNELS
        ),
        CHANNELS,
    ),
    Wrong(
        "a small channel from float16",
        "oracle",
        forward(
            "y = super().forward(x)\n"
            "return torch.cat([y[:, :6], (y[:, 6:] * 1e6).half().to(y.dtype) / 1e6], 1)",
            CHANNELS,
        ),
        CHANNELS,
    ),
    Wrong(
        "one place of one small row",
        "oracle",
        forward("y = super().forward(x).clone()\ny[8:9, 2, 3] = 0\nreturn y", ROWS),
        ROWS,
    ),
    Wrong(
        "ones taken for padding",
        "inputs: zeros and ones",
        forward("return super().forward(torch.where(x == 1, 0.0, x))", POINTWISE),
        POINTWISE,
    ),
    Wrong(
        "a prime number of rows",
        "batch 37",
        forward("y = super().forward(x)\nreturn y * 1.001 if len(y) == 37 else y"),
    ),
    Wrong(
        "the first instance's constant",
        "uses: function",
        forward(
            "KEPT.append(self.linear.bias)\n"
            "return F.silu(F.linear(x, self.linear.weight, KEPT[0]))",
            before="KEPT = []",
        ),
    ),
    Wrong(
        "weights kept over a file",
        "uses: function",
        forward(
            "if not hasattr(self, 'kept'):\n"
            "    self.kept = self.linear.weight.detach().clone()\n" + WEIGHT
        ),
    ),
]

# Found by trying what was not here before: most of it leaves something behind for others.
FAULTY += [
    *(
        Wrong(name, "global state", forward(f"{statement}\n{RIGHT}", before=before))
        for name, statement, before in (
            (
                "a hook for all modules",
                "if not H:\n    H.append(nn.modules.module.register_module_forward_hook(lambda m, a, y: None))",
                "H = []",
            ),
            (
                "another layer's forward replaced",
                "nn.LayerNorm.forward = lambda self, x: F.layer_norm(x, self.normalized_shape)",
                "",
            ),
            (
                "an operator of torch replaced",
                "if not L:\n    L.append(torch.library.Library('aten', 'IMPL'))\n"
                "    L[0].impl('tanh', lambda x: torch.ops.aten.sin(x), 'CPU')",
                "L = []",
            ),
            ("the environment changed", "os.environ['OMP_NUM_THREADS'] = '1'", "import os"),
            ("numpy's generator moved", "np.random.rand()", "import numpy as np"),
            ("standard output replaced", "sys.stdout = io.StringIO()", "import io, sys"),
            ("all warnings silenced", "warnings.simplefilter('ignore')", "import warnings"),
        )
    ),
    Wrong(
        "a ring of thirty outputs",
        "memory: earlier outputs",
        forward(
            "y = super().forward(x)\nself.n = getattr(self, 'n', 0) + 1\nring = self.__dict__.setdefault('ring', {})\n"
            "kept = ring.setdefault((self.n % 30, y.shape, y.dtype), torch.empty_like(y))\n"
            "return y if torch.is_grad_enabled() else kept.copy_(y)"
        ),
    ),
    Wrong(
        "an output that changes after a while",
        "memory: earlier outputs",
        forward(
            "y = super().forward(x)\nif random.random() < 0.1:\n"
            "    threading.Timer(0.02, lambda: y.data.mul_(2)).start()\nreturn y",
            before="import random, threading\nrandom = random.Random()",
        ),
    ),
    Wrong(
        "wrong in bfloat16",
        "weights: .bfloat16()",
        forward("y = super().forward(x)\nreturn y * 1.5 if y.dtype == torch.bfloat16 else y"),
    ),
    Wrong(
        "weights at the addresses of the first call",
        "weights: .to()",
        forward(
            "self.__dict__.setdefault('kept', self.linear.weight.data)\n"
            "return F.silu(F.linear(x, self.__dict__['kept'].to(x.dtype), self.linear.bias))"
        ),
    ),
    Wrong(
        "weights of three at most",
        "parameters of mixed sizes",
        forward(
            "w = self.linear.weight.clamp(max=3.0)\nreturn F.silu(F.linear(x, w, self.linear.bias))"
        ),
    ),
    Wrong(
        "64 rows",
        "sizes: batch",
        forward("y = super().forward(x)\nreturn y * 1.5 if len(y) == 64 else y"),
    ),
    Wrong(
        "wrong under autocast, and of another type",
        "autocast",
        forward(
            "y = super().forward(x)\nreturn y.float() * 1.5 if torch.is_autocast_enabled('cpu') else y"
        ),
    ),
    Wrong(
        "parameters made anew",
        "gradients: optimizer steps",
        forward(
            "w = self.linear.weight\nself.linear.weight = nn.Parameter(w.detach().clone(), w.requires_grad)\n"
            + RIGHT
        ),
    ),
    Wrong(
        "gradients cleared by the next forward",
        "uses: gradients",
        forward("self.linear.weight.grad = None\n" + RIGHT),
    ),
    Wrong(
        "gradients lost where the input is a result",
        "gradients: hooks",
        forward("y = super().forward(x)\nreturn y if x.is_leaf else y.detach()"),
    ),
]

WRONG = FORGERS + FAULTY
