"""The museum's GPU wing: streams, events, unwritten and foreign memory, races, patched clocks.

As on the CPU, each wrong candidate is wrong in one way and must fail by the check meant for it;
right ones that use streams and graphs properly must pass.
"""

# ruff: noqa: E501  (one candidate, one line, where that is how it reads best)

from __future__ import annotations

from pathlib import Path

import pytest
from museum.models import forward
from museum.wrong import Wrong
from verifying import certified, write

from kernelwright.bench import bench
from kernelwright.verify import verify
from kernelwright.verify.certificate import SANITIZER
from kernelwright.verify.sanitizer import find_tool

LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 128)

    def forward(self, x):
        return F.silu(self.linear(x))

def get_inputs():
    return [torch.rand(16, 256)]
"""

# A power of two of bytes: the next element is already another tensor's.
POINTWISE = """
class Model(nn.Module):
    def forward(self, x):
        return x * 2 + 1

def get_inputs():
    return [torch.rand(16, 128)]
"""

ROW_SUM = """
class Model(nn.Module):
    def forward(self, x):
        return x.sum(1)

def get_inputs():
    return [torch.rand(64, 1024)]
"""

CONV = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3)

    def forward(self, x):
        return F.silu(self.conv(x))

def get_inputs():
    return [torch.rand(8, 16, 16, 16)]
"""

KERNEL = '''
import threading

SOURCE = """
extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}
"""
kernel = None
THREAD = threading.local()

def launch(x, y, n, grid, block):
    global kernel
    if kernel is None:
        kernel = torch.cuda._compile_kernel(SOURCE, "kernel")
    if not hasattr(THREAD, "ready"):
        THREAD.ready = torch.zeros((), device=x.device)  # the driver has no context in new threads
    kernel(grid=(grid, 1, 1), block=(block, 1, 1), args=[x, y, n],
           stream=torch.cuda.current_stream())
'''


def pointwise(body: str, code: str = "") -> str:
    """A kernel of one's own for 2 x + 1."""
    run = "y = torch.empty_like(x)\nlaunch(x, y, x.numel(), -(-x.numel() // 256), 256)\nreturn y"
    guard = (
        "if torch.is_grad_enabled() or not x.numel() or not x.is_contiguous() "
        "or x.dtype != torch.float32:\n    return super().forward(x)\n"
    )
    return forward(guard + code + run, POINTWISE, KERNEL.replace("BODY", body))


RIGHT_BODY = "if (i < n) y[i] = x[i] * 2.0f + 1.0f;"

# Each block adds up one row; without the barriers, warps read what others have not written.
REDUCE = """
    __shared__ float part[256];
    int t = threadIdx.x, row = blockIdx.x;
    float s = 0.0f;
    for (int k = t; k < n; k += 256) s += x[row * n + k];
    if (t >= 32) __nanosleep(500);
    part[t] = s;
    BARRIER
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        BARRIER
    }
    if (t == 0) y[row] = part[0];
"""


def row_sum(barrier: str) -> str:
    run = "y = x.new_empty(len(x))\nif len(x):\n    launch(x.contiguous(), y, x.shape[1], len(x), 256)\nreturn y"
    guard = (
        "if torch.is_grad_enabled() or x.dtype != torch.float32:\n    return super().forward(x)\n"
    )
    return forward(guard + run, ROW_SUM, KERNEL.replace("BODY", REDUCE.replace("BARRIER", barrier)))


STREAM = (
    "S = []\ndef stream():\n    S.append(S[0] if S else torch.cuda.Stream())\n    return S[0]\n"
)

WRONG = [
    Wrong(
        "on another stream at once",
        "stream: unsynchronised",
        forward("with torch.cuda.stream(stream()):\n    return super().forward(x)", LINEAR, STREAM),
        LINEAR,
    ),
    Wrong(
        "not waited for at the end",
        "stream: unsynchronised",
        forward(
            "s = stream()\ns.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(s):\n"
            "    torch.cuda._sleep(20_000_000)\n    return super().forward(x)",
            LINEAR,
            STREAM,
        ),
        LINEAR,
    ),
    Wrong(
        "on the default stream",
        "stream",
        forward(
            "with torch.cuda.stream(torch.cuda.default_stream()):\n    return super().forward(x)",
            LINEAR,
        ),
        LINEAR,
    ),
    Wrong(
        "an event recorded too early",
        "stream: unsynchronised",
        forward(
            "s, e = stream(), torch.cuda.Event()\ns.wait_stream(torch.cuda.current_stream())\n"
            "e.record(s)\nwith torch.cuda.stream(s):\n    torch.cuda._sleep(20_000_000)\n"
            "    y = super().forward(x)\ntorch.cuda.current_stream().wait_event(e)\nreturn y",
            LINEAR,
            STREAM,
        ),
        LINEAR,
    ),
    Wrong(
        "a number of the host in a graph",
        "graph replay",
        forward("return super().forward(x) + float(x[0, 0]) - x[0, 0]", LINEAR),
        LINEAR,
    ),
    Wrong(
        "a graph's static output",
        "memory: earlier outputs",
        forward(
            "y = super().forward(x)\nkept = self.__dict__.setdefault('out', {})\n"
            "return kept.setdefault(y.shape, torch.empty_like(y)).copy_(y)",
            LINEAR,
        ),
        LINEAR,
    ),
    Wrong(
        "a graph replayed on the first data",
        "inputs: normal",
        forward(
            "key = x.shape\nkept = self.__dict__.setdefault('graphs', {})\n"
            "if torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing():\n"
            "    return super().forward(x)\n"
            "if key not in kept:\n    static = x.clone()\n    super().forward(static)\n"
            "    torch.cuda.synchronize()\n    g = torch.cuda.CUDAGraph()\n"
            "    with torch.cuda.graph(g):\n        y = super().forward(static)\n"
            "    kept[key] = g, y, static\nkept[key][0].replay()\nreturn kept[key][1].clone()",
            LINEAR,
        ),
        LINEAR,
    ),
    Wrong(
        "TF32 in secret",
        "oracle",
        forward(
            "before = torch.backends.cuda.matmul.allow_tf32\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
            "y = super().forward(x)\ntorch.backends.cuda.matmul.allow_tf32 = before\nreturn y",
            LINEAR,
        ),
        LINEAR,
    ),
    Wrong(
        "TF32 for all",
        "global state",
        forward(
            "return super().forward(x)", LINEAR, "torch.backends.cuda.matmul.allow_tf32 = True"
        ),
        LINEAR,
    ),
    Wrong(
        "events that take no time",
        "global state",
        forward(
            "return super().forward(x)",
            LINEAR,
            "torch.cuda.Event.elapsed_time = lambda self, other: 0.001",
        ),
        LINEAR,
    ),
    Wrong(
        "no synchronisation for anybody",
        "global state",
        forward("return super().forward(x)", LINEAR, "torch.cuda.synchronize = lambda *a: None"),
        LINEAR,
    ),
    Wrong("on the CPU", "structure", forward("return super().forward(x).cpu()", LINEAR), LINEAR),
    Wrong(
        "memory not written",
        "memory: poisoned",
        pointwise("if (i < n - 1) y[i] = x[i] * 2.0f + 1.0f;"),
        POINTWISE,
    ),
    Wrong(
        "one element too many",
        "memory: beside",
        pointwise(RIGHT_BODY + " if (i == n - 1) y[n] = 3.0f;"),
        POINTWISE,
    ),
    Wrong(
        "one element too early",
        "memory: beside",
        pointwise(RIGHT_BODY + " if (i == 0) y[-1] = 3.0f;"),
        POINTWISE,
    ),
    Wrong(
        "written before its input",
        "memory: beside",
        pointwise(RIGHT_BODY + " if (i == 0) ((float*)x)[-1] = 3.0f;"),
        POINTWISE,
    ),
    Wrong(
        "an illegal address",
        "runs",
        pointwise(RIGHT_BODY + " if (i == 0) *(float*)8 = 3.0f;"),
        POINTWISE,
    ),
    Wrong(
        "the batch that it was compiled for",
        "larger batch",
        pointwise("if (i < n && i < 2048) y[i] = x[i] * 2.0f + 1.0f;", "x = x.contiguous()\n"),
        POINTWISE,
    ),
    Wrong(
        "strides ignored",
        "layout: transposed",
        forward(
            "if torch.is_grad_enabled():\n    return super().forward(x)\n"
            "y = torch.empty_like(x)\nif x.numel():\n    launch(x, y.view(-1), x.numel(), -(-x.numel() // 256), 256)\nreturn y".replace(
                "y.view(-1)", "y"
            ),
            POINTWISE,
            KERNEL.replace("BODY", RIGHT_BODY),
        ).replace("torch.empty_like(x)", "torch.empty(x.shape, device=x.device)"),
        POINTWISE,
    ),
    Wrong("a race", "many calls", row_sum(""), ROW_SUM),
    Wrong(
        "an int counts the elements",
        "sizes: more than 2^31",
        pointwise(RIGHT_BODY, "assert x.numel() > 0\n"),
        POINTWISE,
    ),
]

RIGHT = {
    "a stream of its own, waited for": (
        forward(
            "s, now = stream(), torch.cuda.current_stream()\n"
            "if torch.is_grad_enabled():\n    return super().forward(x)\n"
            "s.wait_stream(now)\nwith torch.cuda.stream(s):\n    y = super().forward(x)\n"
            "x.record_stream(s)\ny.record_stream(now)\nnow.wait_stream(s)\nreturn y",
            LINEAR,
            STREAM,
        ),
        LINEAR,
    ),
    "a kernel of its own": (pointwise(RIGHT_BODY), POINTWISE),
    "a reduction with barriers": (row_sum("__syncthreads();"), ROW_SUM),
    "float64 inside": (
        forward(
            "w, b = self.linear.weight.double(), self.linear.bias.double()\n"
            "return F.silu(F.linear(x.double(), w, b)).to(x.dtype)",
            LINEAR,
        ),
        LINEAR,
    ),
    "a convolution in channels_last": (
        forward(
            "w = self.conv.weight.contiguous(memory_format=torch.channels_last)\n"
            "x_last = x.contiguous(memory_format=torch.channels_last)\n"
            "y = F.silu(self.conv._conv_forward(x_last, w, self.conv.bias))\n"
            "return y.clone(memory_format=torch.contiguous_format) if x.is_contiguous() else super().forward(x)",
            CONV,
        ),
        CONV,
    ),
}


SANITIZED = {
    "a kernel of its own": (pointwise(RIGHT_BODY), True),
    "read beyond its input": (
        pointwise("if (i < n) y[i] = x[i] * 2.0f + 1.0f + (x[i + 1] == 1.5f ? 1e-9f : 0.0f);"),
        False,
    ),
    "read before its input": (
        pointwise("if (i < n) y[i] = x[i] * 2.0f + 1.0f + (x[i - 1] == 1.5f ? 1e-9f : 0.0f);"),
        False,
    ),
}


@pytest.mark.skipif(find_tool() is None, reason="compute-sanitizer is not here")
@pytest.mark.parametrize("name", SANITIZED)
def test_reads_beside_a_tensor_are_seen_by_the_sanitizer(name: str, tmp_path: Path) -> None:
    source, right = SANITIZED[name]
    files = write(tmp_path, POINTWISE, source)
    certificate = verify(*files, "cuda", "highest", only=["runs"], sanitize=True)
    found = {check.name: check for check in certificate.checks}[SANITIZER]
    assert found.passed is right, found


def test_many_elements_are_counted_by_64_bits(tmp_path: Path) -> None:
    plain = forward("return x * 2 + 1", POINTWISE)
    names = ["sizes: more than 2^31"]
    found = certified(tmp_path, POINTWISE, plain, names, device="cuda").checks[0]
    assert found.passed, found


# Slow, and it says that it is fast: by a clock that it found, or by work that nobody waits for.
LIARS = {
    "a clock found by search": forward(
        "torch.cuda._sleep(10_000_000)\nreturn super().forward(x)",
        LINEAR,
        """
import sys
for module in list(sys.modules.values()):
    if hasattr(module, "elapsed") and hasattr(module, "record"):
        module.elapsed = lambda a, b: 0.001
        module.perf_counter = lambda: 0.0
torch.cuda.Event.elapsed_time = lambda self, other: 0.001
""",
    ),
    "work that nobody waits for": forward(
        "s = stream()\ns.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(s):\n"
        "    torch.cuda._sleep(10_000_000)\n    return super().forward(x)",
        LINEAR,
        STREAM,
    ),
}


@pytest.mark.parametrize("name", LIARS)
def test_time_of_a_liar_is_refused(name: str, tmp_path: Path) -> None:
    files = write(tmp_path, LINEAR, LIARS[name])
    timings = bench(*files, "cuda", "highest", baselines=("eager",), seconds=0.2)
    assert timings.problems, timings


def test_time_of_an_honest_candidate_is_believed(tmp_path: Path) -> None:
    files = write(tmp_path, LINEAR, RIGHT["float64 inside"][0])
    timings = bench(*files, "cuda", "highest", baselines=("eager",), seconds=0.2)
    assert timings.verified is True and not timings.problems, timings


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_candidate_is_caught(wrong: Wrong, tmp_path: Path) -> None:
    certificate = certified(tmp_path, wrong.model, wrong.source, [wrong.check], device="cuda")
    found = {check.name: check for check in certificate.checks}[wrong.check]
    assert found.passed is False, found


@pytest.mark.parametrize("name", RIGHT)
def test_right_candidate_is_certified(name: str, tmp_path: Path) -> None:
    source, model = RIGHT[name]
    certificate = certified(tmp_path, model, source, device="cuda")
    assert certificate.passed, certificate
