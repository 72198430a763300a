"""Who brings a graph: what people have becomes a module with example inputs, which is compiled.

In: a torch.fx.GraphModule, a plain function, an exported program, a scripted module, a graph of
Dynamo's. Out: an nn.Module whose class can be written down. The one idea: behind this door there is
one kind of thing, a Problem, so `pipeline.compile_problem` is the way of all of them.
"""
