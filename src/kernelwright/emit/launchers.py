"""What the C functions of an emitted file share: one signature, the Args, the device and stream."""

from __future__ import annotations

from kernelwright.emit.programs import ProgramPrinter

# One signature for every launcher, so that Python needs no binding compiled for it. Behind the
# sizes stand the device and the stream, or the number of threads.
PARAMETERS = "void* const* tensors, const int64_t* numbers"


def c_function(name: str, lines: list[str]) -> str:
    return "\n".join([f'extern "C" int {name}({PARAMETERS}) {{', *lines, "}"])


def arguments(printer: ProgramPrinter, first: int = 0) -> list[str]:
    """Args `a`, from the addresses behind the `first` ones and the sizes."""
    values = [f"      {value}," for value in members(printer, printer.kernel.reads, first)]
    return [f"  const {printer.struct}::Args a{{", *values, "  };"]


def members(printer: ProgramPrinter, reads: list[str], first: int) -> list[str]:
    """What Args hold; a result that another kernel stores has no place here."""
    kernel, behind = printer.kernel, first + len(reads)
    values = [
        f"static_cast<const {printer.storage(b)}*>(tensors[{i}])"
        for i, b in enumerate(reads, first)
    ]
    given = {b: f"tensors[{i}]" for i, b in enumerate(kernel.writes, behind)}
    values += [
        f"static_cast<{printer.storage(b)}*>({given[b]})" if b in given else "nullptr"
        for b in kernel.places
    ]
    return [*values, *(f"numbers[{i}]" for i in range(len(printer.symbols())))]


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
