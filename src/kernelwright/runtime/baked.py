"""What tracing took for granted: the tree of modules, their classes and their plain attributes.

A trace holds for the module as it was. `examine` says, in a sentence, what is no longer so. The
compiler writes the table with the same functions that read it.
"""

import enum
import hashlib
import types

import torch
from torch import nn

PLAIN = (bool, int, str, type(None))
NUMBERS = (*PLAIN, float, complex, bytes, enum.Enum)
DATA = (*NUMBERS, list, tuple, dict, set, torch.Tensor, torch.dtype, torch.device)
OWN_FIELDS = {*vars(nn.Module()), "_kernelwright"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def class_name(kind):
    """With its module for torch's own classes; a user's class may live in another file later."""
    home = kind.__module__
    return f"{home}.{kind.__qualname__}" if home.startswith("torch.") else kind.__name__


def attributes(module):
    """What a module keeps besides tensors, submodules and hooks."""
    found = {k: v for k, v in vars(module).items() if k not in OWN_FIELDS}
    return {k: v for k, v in found.items() if not isinstance(v, torch.Tensor)}


def is_plain(value):
    """Whether a literal stands for the value, and `==` compares it."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(is_plain(v) for v in value)
    return type(value) in PLAIN or (type(value) is float and value - value == 0.0)


def is_record(value):
    """Whether an object is data, such as a configuration, and no trainer, logger or function."""
    if not hasattr(value, "__dict__") or isinstance(value, (type, types.ModuleType)):
        return False
    return not callable(value) and all(isinstance(v, DATA) for v in vars(value).values())


def present(module):
    """The names of children, parameters and buffers that are there."""
    tables = (module._modules, module._parameters, module._buffers)
    return tuple(name for table in tables for name in table if table[name] is not None)


def traced_hooks(module):
    """Hooks of torch's own reparametrisations, which a trace follows; any other hook it cannot."""
    if not any(getattr(module, name) for name in HOOKS):
        return ()
    return tuple(
        class_name(type(hook)) if class_name(type(hook)).startswith("torch.nn.utils.") else ""
        for name in HOOKS
        for hook in getattr(module, name).values()
    )


def described(value, seen=()):
    """A text that is the same wherever the value means the same, also in another process."""
    if isinstance(value, (*PLAIN, float, complex, bytes, range, slice)) and not isinstance(
        value, enum.Enum
    ):
        return repr(value)
    if id(value) in seen:
        return "..."
    seen = (*seen, id(value))
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, dict):
        inside = [f"{described(k, seen)}: {described(v, seen)}" for k, v in value.items()]
        return f"{class_name(type(value))}({', '.join(inside)})"
    if isinstance(value, (list, tuple)):
        return f"{class_name(type(value))}({', '.join(described(v, seen) for v in value)})"
    if isinstance(value, (set, frozenset)):
        return f"{class_name(type(value))}({', '.join(sorted(described(v, seen) for v in value))})"
    if isinstance(value, type):
        return class_name(value)
    if isinstance(value, types.FunctionType):
        return _described_function(value, seen)
    if isinstance(value, types.MethodType):
        return f"{value.__func__.__name__} of {class_name(type(value.__self__))}"
    if callable(getattr(value, "tobytes", None)):  # an array of NumPy
        return f"{class_name(type(value))}({hashlib.sha256(value.tobytes()).hexdigest()[:16]})"
    if isinstance(value, nn.Module):
        return _described_fields(value, {**attributes(value), **value._modules}, seen)
    if is_record(value):
        return _described_fields(value, vars(value), seen)
    return getattr(value, "__name__", class_name(type(value)))


def _described_fields(value, fields, seen):
    inside = [f"{name}={described(field, seen)}" for name, field in sorted(fields.items())]
    return f"{class_name(type(value))}({', '.join(inside)})"


def _described_function(function, seen):
    """Its name, and what two functions of one name can differ in: constants, defaults, closure."""
    code = function.__code__
    constants = [c for c in code.co_consts[1:] if not isinstance(c, types.CodeType)]
    kept = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    inside = [*constants, *(function.__defaults__ or ()), *kept]
    listed = ", ".join([*code.co_names, *(described(v, seen) for v in inside)])
    return f"{function.__name__}({listed})"


def _mentioned(kind):
    """Every name that the methods of a class use: what is added under another concerns no one."""
    methods = [f for base in kind.__mro__ for f in vars(base).values() if hasattr(f, "__code__")]
    words = {word for f in methods for word in (*f.__code__.co_names, *f.__code__.co_consts)}
    return {*words, *(name for base in kind.__mro__ for name in vars(base))}


def examine(root, table):
    """Why the trace does not hold for this module any more, or None."""
    for paths, *traced in table:
        for path in paths:
            cause = _otherwise(root, path, *traced)
            if cause is not None:
                return cause
    return None


def _otherwise(root, path, kind, names, hooks, plain, others):
    """What is not as it was in the module at this place."""
    module = root
    for part in path.split(".") if path else ():
        module = module._modules.get(part) if module is not None else None
    if module is None:
        return f"{path} is gone"
    place = path or "the model"
    if path and class_name(type(module)) != kind:
        return f"{path} is a {type(module).__name__} now"
    if present(module) != names:
        return f"the tensors or submodules of {place} are not those it was traced with"
    if path and traced_hooks(module) != hooks:
        return f"{path} has hooks"
    dot = f"{path}." if path else ""
    for name in plain:
        if not hasattr(module, name):
            return f"{dot}{name} is gone"
        value = getattr(module, name)
        if type(value) is not type(plain[name]) or value != plain[name]:
            now = "another" if torch.compiler.is_compiling() else repr(value)
            return f"{dot}{name} is {now} and was {plain[name]!r}"
    if torch.compiler.is_compiling():  # a compiler would have to follow all of the others
        return None
    return _other_attributes(module, dot, plain, others)


def _other_attributes(module, dot, plain, others):
    found = attributes(module)
    for name in found:
        if name not in plain and name not in others and name in _mentioned(type(module)):
            return f"{dot}{name} was not there"
    for name, text in others.items():
        if name not in found or described(found[name]) != text:
            return f"{dot}{name} has changed"
    return None
