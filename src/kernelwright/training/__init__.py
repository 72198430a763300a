"""The backward as a second graph: what is differentiated, what is kept, what is computed again.

histories.py   whether a graph is all that autograd would differentiate of a forward
pullbacks.py   the derivative of one ATen call, as torch records it
joint.py       a captured graph with the calls of its derivative behind it
partition.py   the two graphs of a training step, and what the first keeps for the second
"""
