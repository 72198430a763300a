"""The user's names and the generated ones in one module: each text means what it meant alone."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import checking
import pytest

from kernelwright.emit.apart import keep_apart, own_names, prefix_for
from kernelwright.emit.library import RULE
from kernelwright.emit.scopes import bound, imports, renamed, used, used_at_once
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem

GENERATED = textwrap.dedent('''
    # Generated.
    import collections
    import ctypes
    import hashlib
    import os
    import struct
    import sys
    import warnings

    import torch
    from torch.utils.cpp_extension import load_inline

    KERNELS = r"""KERNELS os torch"""
    _KERNELS, FLAGS = None, [flag for flag in ("a", "b")]


    def _build(os_name="os", *, struct=3):
        global _KERNELS
        text = [KERNELS, *FLAGS, os.sep, f"{len(KERNELS)} {os.sep!r:>{len(FLAGS)}}"]
        _KERNELS = hashlib.sha256("".join(text).encode()).hexdigest(), struct
        return _KERNELS


    def _launch(name, *sizes):
        """_launch launches os."""
        with torch.no_grad() as KERNELS:
            return name, struct.pack(f"{len(sizes)}q", *sizes), _build(struct=sizes), KERNELS


    class ModelNew(Model):
        fallbacks = collections.Counter()
        os, sys = os.sep, sys

        def forward(self, x, torch_=torch):
            lines = [warnings for warnings in sorted(self.fallbacks)]
            found = _launch("a", 1, 2), any(isinstance(v, int) for v in self.state), sys.maxsize
            return found, lines, torch_.zeros(1), load_inline.__name__, ModelNew.__name__, x
''')

USER = textwrap.dedent("""
    class Model:
        state = 1, 2.0

        def own(self):
            return {check}
""")

# What the user's file does, and an expression that must still be true when Model is used.
COLLISIONS = {
    "a constant": ("KERNELS = 'mine'", "KERNELS == 'mine'"),
    "a function": ("def _launch():\n    return 'mine'", "_launch() == 'mine'"),
    "a class": ("class struct:\n    size = 3", "struct.size == 3"),
    "a variable called os": ("os = 'mine'", "os == 'mine'"),
    "a variable called sys": ("from os import sep as sys", "sys == '/'"),
    "torch under another name": ("import torch as t\ntorch = 'mine'", "torch == 'mine' and t"),
    "an import from elsewhere": ("from collections import Counter as warnings", "warnings('a')"),
    "another import of the same": ("import os.path as os\nimport os.path as sys", "os is sys"),
    "the same import": ("import os, sys, torch.nn\nimport torch", "os.sep and torch.nn"),
    "a conditional import": ("if True:\n    import hashlib\nelse:\n    hashlib = 1", "hashlib.md5"),
    "an import that is rebound": ("import collections\ncollections = 3", "collections == 3"),
    "a loop variable": ("for ctypes in range(3):\n    x = ctypes", "ctypes == 2"),
    "a with statement": ("import io\nwith io.StringIO() as FLAGS:\n    y = 1", "FLAGS.closed"),
    "an exception": (
        "def _build():\n    try:\n        1 / 0\n    except ZeroDivisionError as load_inline:\n"
        "        return str(load_inline)",
        "_build().startswith('division')",
    ),
    "a walrus": ("if (KERNELS := 5) > 3:\n    y = 1", "KERNELS == 5"),
    "a match": ("match {'a': 1}:\n    case {'a': hashlib}:\n        y = 1", "hashlib == 1"),
    "a global statement": (
        "def set_it():\n    global _KERNELS\n    _KERNELS = 'mine'\nset_it()",
        "_KERNELS == 'mine'",
    ),
    "a builtin": ("def any(x):\n    return 'mine'\nlen = 3", "any(0) == 'mine' and len == 3"),
    "a star import": ("from torch import *", "max(tensor([1, 2])) == 2"),
    "names that begin as ours do": (
        "_kw_os = 1\n_kw_torch = os = torch = 2",
        "(_kw_os, _kw_torch, os, torch) == (1, 2, 2, 2)",
    ),
    "a lookup without a binding": ("import builtins\nbuiltins.KERNELS = 7", "KERNELS == 7"),
    "a ModelNew": (
        "class ModelNew:\n    name = 'mine'\nkept = ModelNew\ndef make(ModelNew=1):\n"
        "    return ModelNew\nmade = make(ModelNew=2)",
        "kept.name == 'mine' and made == 2",
    ),
    "locals alone": (
        "def local(KERNELS, os=1):\n    _launch = lambda struct: struct\n    return _launch(os)",
        "local(3) == 1",
    ),
    "everything": (
        "\n".join(f"{name} = {name!r}" for name in sorted(bound(GENERATED) - {"ModelNew"})),
        " and ".join(f"{name} == {name!r}" for name in sorted(bound(GENERATED) - {"ModelNew"})),
    ),
}


def apart(user: str) -> tuple[str, str]:
    parts = GENERATED.split("\n\n\n")
    assert len(parts) == 4
    kept, generated = keep_apart(user, parts, prefix_for(user))
    return kept, "\n\n\n".join(generated)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "both"}
    exec(compile(text, "both.py", "exec", dont_inherit=True), names)
    return names


def outcome(names: dict[str, Any]) -> Any:
    return names["ModelNew"]().forward(3)


@pytest.mark.parametrize("case", COLLISIONS)
def test_collisions(case: str) -> None:
    text, check = COLLISIONS[case]
    user, generated = apart(text + USER.format(check=check))
    names = run(user + generated)
    assert names["ModelNew"]().own()
    expected = outcome(run(USER.format(check="True") + GENERATED))
    assert str(outcome(names)) == str(expected)


def test_every_name_of_ours_has_the_prefix() -> None:
    user = "import os\nimport torch\nfrom torch import nn\n" + USER.format(check="os.sep")
    kept, generated = apart(user)
    assert kept == user
    assert own_names(generated) == {"_KW_KERNELS", "_KW_KERNELS_2", "_KW_FLAGS", "_kw_build",
                                    "_kw_launch"}  # fmt: skip
    assert imports(generated).keys() == imports(GENERATED).keys()
    assert 'r"""KERNELS os torch"""' in generated and '"""_launch launches os."""' in generated
    assert "with torch.no_grad() as KERNELS:" in generated
    assert """f"{len(_KW_KERNELS)} {os.sep!r:>{len(_KW_FLAGS)}}\"""" in generated


def test_the_users_own_prefix_is_respected() -> None:
    """An emitted file may be compiled again."""
    user = "_kw_launch, _KW2_STATE = 1, 2\n" + USER.format(
        check="(_kw_launch, _KW2_STATE) == (1, 2)"
    )
    assert prefix_for(user) == "_kw3"
    assert prefix_for("", ["_kw_x"]) == "_kw2" and prefix_for("_kwargs = 1") == "_kw"
    kept, generated = apart(user)
    assert kept == user and "def _kw3_launch(" in generated
    assert run(kept + generated)["ModelNew"]().own()


def test_a_names_that_is_given_first_does_not_depend_on_others() -> None:
    text = "launch = 1\n_launch = 2\n"
    for first, expected in (("launch", "_kw_launch = 1"), ("_launch", "_kw_launch = 2")):
        _, (generated,) = keep_apart("", [text], "_kw", {first})
        assert expected in generated and "_kw_launch_2 = " in generated


def test_f_strings_keep_their_text() -> None:
    text = textwrap.dedent("""
        a = f"{x} {{x}} {x!r:>{x}} {y.x} {d['x']} {[x for x in z]} {x != 1}" "x" f'{x}'
        b = rf"\\d{x}" + f"\\{{{x:{{}}}}}"
        c = (f"it's {x}"  # it's x
             f'''"{x
             }"''')
    """)
    changed = renamed(text, {"x": "new"})
    assert changed == textwrap.dedent("""
        a = f"{new} {{x}} {new!r:>{new}} {y.x} {d['x']} {[x for x in z]} {new != 1}" "x" f'{new}'
        b = rf"\\d{new}" + f"\\{{{new:{{}}}}}"
        c = (f"it's {new}"  # it's x
             f'''"{new
             }"''')
    """)


def test_a_users_model_new_is_renamed_wherever_it_is_meant() -> None:
    user = textwrap.dedent("""
        class ModelNew(Base):
            ModelNew = 3
            other = ModelNew + 1
            def again(self, ModelNew=None):
                self.ModelNew = ModelNew
                return super(ModelNew, self).again()
            def new(self):
                return [ModelNew(x) for x in f"{ModelNew}"], dict(ModelNew=ModelNew), "ModelNew"
    """)
    changed, _ = apart(user)
    assert changed == textwrap.dedent("""
        class _user_ModelNew(Base):
            ModelNew = 3
            other = ModelNew + 1
            def again(self, ModelNew=None):
                self.ModelNew = ModelNew
                return super(ModelNew, self).again()
            def new(self):
                return [_user_ModelNew(x) for x in f"{_user_ModelNew}"], """
                                      """dict(ModelNew=_user_ModelNew), "ModelNew"
    """)  # fmt: skip


def test_names_of_any_script() -> None:
    text = "größe = 1\ndef größer(größe=größe):\n    return größe, größe_2\ngröße_2 = größe\n"
    changed = renamed(text, {"größe": "size", "größe_2": "second"})
    assert changed == "size = 1\ndef größer(größe=size):\n    return größe, second\nsecond = size\n"


def test_what_a_text_binds_and_uses() -> None:
    text = textwrap.dedent("""
        import a.b, c.d as e
        from f import g as h, i
        x: int = 1
        def f(y=x, *, z: T = w):
            global late
            late = inner
            return [q for q in y]
        class C(Base):
            m = n
            def k(self):
                return o
    """)
    assert bound(text) == {"a", "e", "h", "i", "x", "f", "C", "late"}
    assert used(text) >= {"x", "w", "T", "int", "inner", "Base", "n", "o"}
    assert "q" not in used(text)
    assert used_at_once(text) >= {"x", "w", "T", "int", "Base", "n"}
    assert not used_at_once(text) & {"inner", "o"}
    assert imports(text) == {"a": {("a",)}, "e": {("c.d",)}, "h": {("f", "g")}, "i": {("f", "i")}}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_every_name_of_a_real_emitted_file(target: str) -> None:
    """The user has a variable of each name that the generated part binds or takes from Python."""
    path = checking.TESTS / "models" / "linear_gelu_softmax.py"
    compiled = compile_problem(load_problem(path, "cpu"), target=target, policy=ALWAYS)
    _, _, text = compiled.source.partition("def get_init_inputs")
    _, _, text = text.partition(RULE)
    text = RULE + text.replace("_kw_", "").replace("_KW_", "")
    names = sorted((bound(text) | used(text)) - {"Model", "ModelNew", "super", "__class__"})
    user = "class Model:\n    value = 1\n" + "".join(f"{name} = {name!r}\n" for name in names)
    kept, (generated,) = keep_apart(user, [text], "_kw")
    assert kept == user
    ast.parse(generated)
    assert not bound(generated) & set(names)
    assert not used(generated) & set(names)
