"""The programs of a file for a GPU become a library, by nvcc, for the GPU that is there."""

import torch

from kernelwright.runtime.build import built, identity, separate


def library_for_gpu(stem, programs, headers):
    """The compiled programs, from the folder where they are kept or from nvcc; None without a GPU.

    Hopper's instructions are those of this architecture alone, and have a letter to their number.
    """
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    number = f"{major}{minor}" + ("a" if major == 9 else "")
    gpu = f"-gencode=arch=compute_{number},code=sm_{number}"
    flags = dict(
        extra_cflags=["-std=c++17", "-O1"],
        extra_cuda_cflags=["-std=c++17", "-O3", gpu],
        is_python_module=False,  # plain C functions: no binding to compile
    )
    units = separate(programs, headers)
    return built(stem, "cu", units, flags, [str(torch.version.cuda), identity("nvcc")])
