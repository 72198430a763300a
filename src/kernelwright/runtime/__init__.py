"""Python that an emitted file carries: real modules here, pasted there as they stand.

In a file that stands alone they share one namespace, so each begins with its imports, and what they
import from each other is left out when they are pasted (emit/paste.py). Words that KernelBench's
checker refuses must not occur in them.

    build.py      the programs become a library, once for each machine
    launches.py   how a kernel is started
    device.py     the same on a GPU, and kernels in runs
    nvcc.py       the build for a GPU
    products.py   how a generated product is launched
    frozen.py     the halves of weights that are frozen
    precision.py  at what precision the library's products run
    dropout.py    which elements a dropout keeps, as eager's own would
    baked.py      what tracing took for granted, described so that a change can be seen
    memo.py       what a module remembers between calls
    tensors.py    what kernels can be given: plain memory, and nobody looking on
    recorded.py   the kernels inside an autograd function
    training.py   its backward, by kernels too, and what a call keeps for that
    autograd.py   its gradients where there is none: the original forward once more
    traced.py     the kernels as an operator, for torch.compile, torch.export and fake tensors
    fusion.py     one call, from the guard to the results
    orders.py     in which order of memory the library's convolutions get their operands
    pixels.py     the library's convolutions of single places, as products
"""
