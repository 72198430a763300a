"""What the C functions of an emitted file share: one signature, the Args, the device and stream."""

from __future__ import annotations

from kernelwright.emit.cpp import ProgramPrinter, camel

# One signature for every launcher, so that Python needs no binding compiled for it. Behind the
# sizes stand the device and the stream, or the number of threads.
PARAMETERS = "void* const* tensors, const int64_t* numbers"


def c_function(name: str, lines: list[str]) -> str:
    return "\n".join([f'extern "C" int {name}({PARAMETERS}) {{', *lines, "}"])


def arguments(printer: ProgramPrinter, first: int = 0) -> list[str]:
    """Args `a`, from the addresses behind the `first` ones and the sizes."""
    kernel = printer.kernel
    types = [f"const {printer.storage(b)}*" for b in kernel.reads]
    types += [f"{printer.storage(b)}*" for b in kernel.writes]
    values = [f"static_cast<{t}>(tensors[{i}])" for i, t in enumerate(types, first)]
    values += [f"numbers[{i}]" for i in range(len(printer.symbols()))]
    return [f"  const {camel(kernel.name)}::Args a{{", *(f"      {v}," for v in values), "  };"]


def on_device(at: int) -> list[str]:
    """The guard for the device, and the stream, from the last two numbers."""
    return [
        f"  const kw::DeviceGuard guard(static_cast<int>(numbers[{at}]));",
        f"  const auto on = reinterpret_cast<cudaStream_t>(numbers[{at + 1}]);",
    ]


ERROR_TEXT = """\
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}"""
