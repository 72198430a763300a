"""Matching, replacing and explaining, on graphs written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelwright.graph import Call, Graph, Node, Origin, Ref, TensorType
from kernelwright.interpret import run
from kernelwright.pattern import (
    ANY,
    Builder,
    Exactness,
    Match,
    Num,
    OneOf,
    Opt,
    Param,
    Pat,
    Rewrite,
    Rule,
    Var,
    all_of,
    aten_call,
    matches,
    refusals,
    rewrite,
)
from kernelwright.spec import check_graph

F32 = TensorType((2, 3), torch.float32)
X, Y = Ref("x"), Ref("y")


def graph(
    outputs: Any, mutations: tuple[tuple[str, str], ...] = (), **ops: tuple[Any, ...]
) -> Graph:
    """x and y are inputs, w a buffer; the rest is name=(op, argument, ...)."""
    nodes = [Node(n, "input", (), F32, Origin("input")) for n in ("x", "y")]
    nodes.append(Node("w", "buffer", (), F32, Origin("buffer")))
    for line, (name, (op, *args)) in enumerate(ops.items()):
        call = None if op == "getitem" else aten_call(op, tuple(args))
        origin = Origin(op, "model.py", line + 1)
        nodes.append(Node(name, op, tuple(args), F32, origin, call, (name,)))
    made = Graph(tuple(nodes), outputs, mutations, targets={"w": "w"})
    check_graph(made, "capture")
    return made


def found(pattern: Pat, made: Graph, root: str) -> list[dict[str, Any]]:
    return [match.bound for match in matches(made, pattern, made[root])]


def drop(op: str, **options: Any) -> Rule:
    """op(x) => x."""
    return Rule(f"{op}(x) => x", Pat(op, Var("x")), lambda m, b: m["x"], Exactness.EXACT, **options)


def test_a_name_that_occurs_twice_is_one_value() -> None:
    made = graph(Ref("b"), a=("add", X, X, 1), b=("add", Ref("a"), Y, 1))
    pattern = Pat("add", Var("v"), Var("v"), 1)
    assert found(pattern, made, "a") == [{"v": X}]
    assert found(pattern, made, "b") == []


def test_numbers_flags_and_none_are_never_confused() -> None:
    made = graph(Ref("a"), a=("layer_norm", X, (3,), None, None, 1, True))
    for last, eps, expected in ((True, 1, 1), (True, 1.0, 1), (1, 1, 0), (True, True, 0)):
        pattern = Pat("layer_norm", Var("x"), ANY, None, Opt("b"), eps, last)
        assert len(found(pattern, made, "a")) == expected
    assert found(Pat("layer_norm", Var("x"), Num("n"), ...), made, "a") == []


def test_leaves_ask_for_what_they_say() -> None:
    made = graph(Ref("b"), a=("add", X, Ref("w"), 1), b=("mul", Ref("a"), 3))
    assert found(Pat("add", Var("x"), Param("p"), ANY), made, "a") == [{"x": X, "p": Ref("w")}]
    assert found(Pat("add", Param("p"), Var("x"), ANY), made, "a") == []
    flipped = Pat("add", Param("p"), Var("x"), ANY, commutes=True)
    assert found(flipped, made, "a") == [{"p": Ref("w"), "x": X}]
    either = Pat("mul", ANY, OneOf((Param("c"), Num("c"))))
    assert found(either, made, "b") == [{"c": 3}]


def test_all_arguments_count_unless_the_pattern_is_open() -> None:
    made = graph(Ref("a"), a=("add", X, Y, 2))
    assert found(Pat("add", Var("x"), Var("y")), made, "a") == []
    assert found(Pat("add", Var("x"), ...), made, "a") == [{"x": X}]
    assert found(Pat("add", ANY, ANY, ANY, ANY, ...), made, "a") == []


def test_a_condition_on_the_node_is_part_of_the_pattern() -> None:
    made = graph(Ref("b"), a=("relu", X), b=("relu", Ref("a")))
    pattern = Pat("relu", Var("x"), where=lambda g, node: g[node.inputs[0]].op == "input")
    assert found(pattern, made, "a") and not found(pattern, made, "b")


def test_nested_patterns_bind_nodes_and_list_the_root_first() -> None:
    made = graph(Ref("b"), a=("relu", X), b=("mul", Ref("a"), 3))
    (match,) = matches(
        made, Pat("mul", Pat(("relu", "tanh"), Var("x"), name="inner"), 3), made["b"]
    )
    assert [n.name for n in match.nodes] == ["b", "a"]
    assert match.root.name == "b" and match.node("inner").op == "relu"
    assert match.type("x") == F32


def test_a_new_node_keeps_the_name_and_the_sources() -> None:
    def build(match: Match, builder: Builder) -> Ref:
        scaled = builder.node("mul", (match["x"], 2), match.root.type)
        assert scaled.name not in made.by_name
        return builder.node("sub", (scaled, match["x"], 1), match.root.type)

    rule = Rule(
        "relu(neg(x)) => 2 * x - x",
        Pat("relu", Pat("neg", Var("x"))),
        build,
        Exactness.GUARDED,
    )
    made = graph(
        {"out": [Ref("c")]}, a=("neg", X), b=("relu", Ref("a")), b_mul=("exp", Ref("b")),
        c=("add", Ref("b"), Ref("b_mul"), 1),
    )  # fmt: skip
    after, log = rewrite(made, [rule])
    check_graph(after, "rewrite")
    assert after["b"].op == "sub" and after["b"].sources == ("a", "b")
    assert after["b"].payload == Call(
        "torch.ops.aten.sub.Tensor", (Ref("b_mul_1"), X), (("alpha", 1),)
    )
    assert after["b_mul_1"].op == "mul" and after["b_mul"].op == "exp"
    assert after.outputs == made.outputs and "a" not in after.by_name
    assert log == (Rewrite(rule.name, Exactness.GUARDED, made["b"].origin, ("a",)),)
    assert str(log[0]) == f"{rule.name} (guarded): relu at model.py:2, together with a"


def test_a_replaced_value_is_re_pointed_everywhere() -> None:
    made = graph(
        (Ref("c"), Ref("d")), (("w", "b"),), a=("exp", X), b=("relu", Ref("a")),
        c=("add", Ref("b"), Y, 1), d=("mul", Ref("b"), Ref("b")),
    )  # fmt: skip
    after, log = rewrite(made, [drop("relu")])
    check_graph(after, "rewrite")
    assert after.mutations == (("w", "a"),)
    assert after["c"].args == (Ref("a"), Y, 1)
    assert after["d"].payload == Call("torch.ops.aten.mul.Tensor", (Ref("a"), Ref("a")))
    assert log[0].consumed == ("b",)
    module = torch.nn.Module()
    module.register_buffer("w", torch.zeros(2, 3))
    x, y = torch.ones(2, 3), torch.zeros(2, 3)
    (c, _), written = run(after, module, (x, y))
    assert torch.equal(c, x.exp()) and torch.equal(written["w"], x.exp())


@pytest.mark.parametrize(
    ("made", "shared"),
    [
        (graph(Ref("a"), a=("relu", X)), "x"),
        (graph(Ref("b"), a=("relu", X), b=("view", Ref("a"), (3, 2))), "x"),
        (graph((Ref("a"), Ref("b")), a=("exp", X), b=("relu", Ref("a"))), "result 0"),
        (graph(Ref("b"), (("w", "a"),), a=("relu", Y), b=("exp", X)), "y"),
        (graph(Ref("a"), (("w", "b"),), a=("exp", X), b=("relu", Ref("a"))), "result 0"),
    ],
    ids=["input", "view of an input", "two outputs", "buffer from input", "buffer and output"],
)
def test_results_never_come_to_share_memory(made: Graph, shared: str) -> None:
    assert rewrite(made, [drop("relu")]) == (made, ())
    (refusal,) = refusals(made, [drop("relu")])
    assert refusal.why == f"the caller must get a fresh tensor, but would get {shared} itself"


def test_a_view_that_shares_memory_already_stays_what_it_is() -> None:
    made = graph(
        (Ref("v"), Ref("c")), v=("view", X, (2, 3)), b=("relu", Ref("v")), c=("exp", Ref("b"))
    )
    after, log = rewrite(made, [drop("relu")])
    assert len(log) == 1 and after["c"].args == (Ref("v"),)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            graph((Ref("b"), Ref("c")), a=("neg", X), b=("relu", Ref("a")), c=("exp", Ref("a"))),
            "a is also used by c",
        ),
        (graph((Ref("a"), Ref("b")), a=("neg", X), b=("relu", Ref("a"))), "a is also a result"),
        (graph(Ref("b"), (("w", "a"),), a=("neg", X), b=("relu", Ref("a"))), "a is also a result"),
    ],
    ids=["another user", "an output", "a buffer"],
)
def test_interior_nodes_have_one_user_unless_the_rule_says_otherwise(made: Graph, why: str) -> None:
    def law(single_use: bool) -> Rule:
        return Rule(
            "relu(neg(x)) => exp(x)",
            Pat("relu", Pat("neg", Var("x"))),
            lambda m, b: b.node("exp", (m["x"],), m.root.type),
            Exactness.EXACT,
            single_use=single_use,
        )

    assert rewrite(made, [law(True)])[1] == ()
    (refusal,) = refusals(made, [law(True)])
    assert why in refusal.why
    assert str(refusal).startswith("not relu(neg(x)) => exp(x): relu at model.py:2, because a is")
    after, log = rewrite(made, [law(False)])
    assert len(log) == 1 and log[0].consumed == () and "a" in after.by_name


def test_rules_run_to_a_fixed_point_in_a_fixed_order() -> None:
    made = graph(
        Ref("d"), a=("exp", X), b=("relu", Ref("a")), c=("neg", Ref("b")), d=("relu", Ref("c"))
    )
    rules = [drop("neg"), drop("relu")]
    after, log = rewrite(made, rules)
    assert [step.rule for step in log] == ["relu(x) => x", "neg(x) => x", "relu(x) => x"]
    assert after.outputs == Ref("a")
    assert rewrite(made, rules) == (after, log)
    assert rewrite(after, rules) == (after, ())


def test_laws_that_undo_each_other_are_stopped() -> None:
    def swap(old: str, new: str) -> Rule:
        return Rule(
            f"{old}(x) => {new}(x)",
            Pat(old, Var("x")),
            lambda m, b: b.node(new, (m["x"],), m.root.type),
            Exactness.EXACT,
        )

    made = graph(Ref("a"), a=("sin", X))
    with pytest.raises(AssertionError, match="undo each other without end: cos"):
        rewrite(made, [swap("sin", "cos"), swap("cos", "sin")])


def test_a_replacement_must_have_the_same_type() -> None:
    other = TensorType((3, 2), torch.float32)
    rule = Rule(
        "relu(x) => x.T",
        Pat("relu", Var("x")),
        lambda m, b: b.node("t", (m["x"],), other),
        Exactness.EXACT,
    )
    with pytest.raises(
        AssertionError, match=r"relu\(x\) => x.T changes f32\[2, 3\] to f32\[3, 2\]"
    ):
        rewrite(graph(Ref("a"), a=("relu", X)), [rule])


def test_the_first_reason_is_the_one_given() -> None:
    made = graph(Ref("a"), a=("relu", X))
    when = all_of(lambda m: None, lambda m: "it is Monday", lambda m: "it rains")
    assert [r.why for r in refusals(made, [drop("relu", when=when)])] == ["it is Monday"]


def test_one_result_of_several_has_the_place_of_its_operator() -> None:
    made = graph(
        Ref("c"), a=("max.dim", X, 1, True), b=("getitem", Ref("a"), 0), c=("exp", Ref("b"))
    )
    pattern = Pat("getitem", Pat("max.dim", Var("x"), ...), 0)
    rule = Rule("max(x) => x", pattern, lambda m, b: m["x"], Exactness.EXACT)
    (step,) = rewrite(made, [rule])[1]
    assert step.where.op == "max.dim" and step.consumed == ("a", "b")
