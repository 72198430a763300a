"""What files for a GPU carry beside runtime/: a call is recorded once for each kind of call.

In a file that stands alone they share one namespace, so each begins with its imports, and what they
import from each other is left out when they are pasted (emit/paste.py). Words that KernelBench's
checker refuses must not occur in them.

    products.py   how a generated product is launched
    dropout.py    which elements a dropout keeps, as eager's own would
    recorded.py   the kernels inside an autograd function
    memo.py       what a module remembers between calls
    launches.py   kernels in a row, as a table of numbers; steps run by Python
    steps.py      the steps of a call, recorded once for each kind of call
    fusion.py     which of these ways a call takes
    calls.cpp     a call like one before, without Python in between
    node.cpp      the node that such a call is in autograd's graph
"""
