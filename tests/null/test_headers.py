"""The header reader and the pruner: no layout confuses them, and nothing that is needed goes."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from kernelwright.emit import cxx, headers
from kernelwright.emit.cxx import Definition

FOLDER = resources.files("kernelwright") / "kernels"
NAMES = sorted(
    p.name
    for p in FOLDER.iterdir()
    if p.name.endswith((".cuh", ".hpp")) and not p.name.startswith("check")
)
CASES = [(n, d) for n in NAMES for d in headers.KNOWN if not (n.endswith(".hpp") and d == "cuda")]

ODD = r"""
namespace lib
{
// A brace in a comment: {
struct Brace { const char* text = "}"; char c = '{'; };

enum class Kind : int { kA, kB }; // behind it

template <class T, int N = (3 > 2), class U = Pair<T, Pair<T, T>>>
struct alignas(sizeof(T) * N) Wide;

#ifdef FAST
  #define STEP 4
#else
# define STEP \
    2
#endif

template <typename T> auto first(T x) -> decltype(x.size())
{
#if STEP > 2
  if (x) {
#else
  if (!x) {
#endif
    return second<T>(x) + lib::inner::third(x); }
  return 1'000'000;
}
/* in
   two lines */ inline constexpr int kTable[2] = {1, 2}, kOther = 3;
template <> struct Wide<float, 4, int> { int x; };
__global__ void __launch_bounds__(STEP * 32) kernel(Wide<int>* at) { at->fourth(Brace{}); }
MAKE(Kind::kA, "(")
MAKE(Kind::kB, ")");
namespace inner { inline int third(int x) { return x; } }
using Short = Wide<int>;
static_assert(sizeof(Short) > 0, "never");
Brace operator+(Brace a, Brace) { return a; }
}  // namespace lib
extern "C" int launched(int x) { return lib::first(x); }
"""


def found(text: str) -> list[Definition]:
    return [d for d, _ in cxx.definitions(cxx.read(text))]


def test_odd_layouts_are_read() -> None:
    assert [(d.kind, d.name) for d in found(ODD)] == [
        ("type", "Brace"),
        ("type", "Kind"),
        ("type", "Wide"),
        ("macro", "STEP"),
        ("macro", "STEP"),
        ("function", "first"),
        ("variable", "kTable"),
        ("type", "Wide"),
        ("function", "kernel"),
        ("invocation", "MAKE"),
        ("invocation", "MAKE"),
        ("function", "third"),
        ("type", "Short"),
        ("other", None),
        ("other", None),
        ("exported", None),
    ]


def test_comments_belong_to_what_they_stand_at() -> None:
    kind, brace = found(ODD)[1], found(ODD)[0]
    assert kind.text.endswith("// behind it") and brace.text.startswith("// A brace")


def test_what_is_mentioned() -> None:
    first = next(d for d in found(ODD) if d.name == "first")
    words = {(w.name, w.owner) for w in first.words}
    assert {("second", None), ("third", "inner"), ("STEP", None)} <= words
    kernel = next(d for d in found(ODD) if d.name == "kernel")
    names = {w.name for w in kernel.words}
    assert {"Wide", "Brace", "STEP"} <= names and "fourth" not in names  # a member


@pytest.mark.parametrize("text", ["namespace a {", "int f() { return 1;", "#if A\nint x;\n", "}"])
def test_a_text_that_does_not_end_is_no_header(text: str) -> None:
    with pytest.raises(ValueError):
        cxx.read(text)


@pytest.mark.parametrize(("name", "device"), CASES)
def test_a_header_is_read_whole(name: str, device: str) -> None:
    """With everything kept, every token is still there; and all that is defined has a name."""
    one = headers.read(name, device)
    parts = list(one.parts)
    kept = {d for d, _ in cxx.definitions(parts)}
    again = headers._printed(one, kept)
    text = cxx.resolved(headers.header(name), headers.KNOWN[device])
    text = re.sub(r"^(#include .*|#pragma once|// clang-format o.*)\n", "", text, flags=re.M)
    assert _code(again) == _code(text)
    assert all(d.name or d.kind == "exported" for d in kept)


@pytest.mark.parametrize(("name", "device"), CASES)
def test_formatting_does_not_matter(name: str, device: str) -> None:
    text = re.sub(r"^#(include .*|pragma once)\n", "", headers.header(name), flags=re.M)
    text = cxx.resolved(text, headers.KNOWN[device])
    tokens = [t for t in cxx.tokens(text) if t.kind != "comment"]
    spread = "".join(
        f"\n{t.text}\n" if t.kind == "directive" or t.text in "{};" else f" {t.text}"
        for t in tokens
    )
    assert [(d.kind, d.name) for d in found(spread)] == [(d.kind, d.name) for d in found(text)]


def _code(text: str) -> list[str]:
    """Tokens, with comments as words: the title of a header and line breaks left out."""
    text = re.sub(r"^// ---- [\w.]+\.(cuh|hpp) -+$", "", text, count=1, flags=re.M)
    return [word for t in cxx.tokens(text) for word in t.text.split()]


# ---- conditionals ---------------------------------------------------------------------------

CONDITIONAL = """\
#if defined(A)
a
#elif defined(B)
b
#else
c
#endif
"""


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, CONDITIONAL),
        ({"A": True}, "a\n"),
        ({"A": False}, "#if defined(B)\nb\n#else\nc\n#endif\n"),
        ({"A": False, "B": True}, "b\n"),
        ({"A": False, "B": False}, "c\n"),
        ({"B": True}, "#if defined(A)\na\n#else\nb\n#endif\n"),
        ({"B": False}, "#if defined(A)\na\n#else\nc\n#endif\n"),
    ],
)
def test_conditionals_that_are_decided(known: dict[str, bool], expected: str) -> None:
    assert cxx.resolved(CONDITIONAL, known) == expected


def test_conditionals_inside_of_others() -> None:
    text = "#ifndef A\n#if B >= 800\nx\n#else\ny\n#endif\n#else\n#ifdef C\nz\n#endif\n#endif\n"
    assert cxx.resolved(text, {"A": False, "B": False}) == "y\n"
    assert cxx.resolved(text, {"A": True}) == "#ifdef C\nz\n#endif\n"


# ---- pruning --------------------------------------------------------------------------------


def names_of(text: str) -> set[str]:
    return {d.name for d in found(re.sub(r"^#include.*\n", "", text, flags=re.M)) if d.name}


def test_only_what_is_reached_stays() -> None:
    text = headers.flatten(
        ["pointwise.hpp", "half.cuh"], "x = kw::mish(kw::load_row<4>(p));", "cpu"
    )
    names = names_of(text)
    assert {"mish", "load_row", "Row", "to_float", "KW_FN"} <= names
    assert not names & {"gelu", "pointwise", "half_t", "bfloat16_t", "store_strided", "Pack"}
    assert "__CUDA" not in text


def test_an_overload_needs_its_type() -> None:
    """float16 in memory brings its conversions, and bfloat16's stay away."""
    text = headers.flatten(
        ["half.cuh"], "kw::to_float(kw::half_t{}); kw::from_float<float>(x)", "cpu"
    )
    assert "to_float(half_t x)" in text and "bfloat16_t" not in text
    assert "from_float<half_t>" in text and "from_float<float>" in text


def test_a_member_is_no_mention_and_a_namespace_is_kept_apart() -> None:
    text = headers.flatten(["gemm_sm90.cuh"], "a.gemm->settle; P::gemm; few::gemm", "cuda")
    assert "cudaError_t gemm" not in text


def test_a_product_brings_its_own_loop_alone() -> None:
    text = headers.flatten(["gemm_sm90.cuh", "few_rows.cuh"], "kw::gemm<kw::SplitFloat>(g)", "cuda")
    names = names_of(text)
    assert {"gemm", "SplitFloat", "Product", "KW_PRODUCTS", "KW_HOPPER", "split_row"} <= names
    assert not names & {"Float16", "Bfloat16", "RoundedFloat", "few_rows", "bfloat16_t"}


def test_the_same_programs_give_the_same_text_and_units_compose() -> None:
    programs = ["kw::mish(x)", "kw::gelu(x)"]
    whole = headers.flatten(["pointwise.hpp"], "\n".join(programs), "cpu")
    assert whole == headers.flatten(["pointwise.hpp"], "\n".join(reversed(programs)), "cpu")
    for program in programs:
        assert names_of(headers.flatten(["pointwise.hpp"], program, "cpu")) < names_of(whole)


def test_what_is_not_understood_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "header", lambda name: f"// {name}\n{ODD}")
    headers.read.cache_clear()
    text = headers.flatten(["odd.cuh"], "", "cuda")
    headers.read.cache_clear()
    assert "operator+" in text and "static_assert" in text and "struct Brace" in text
    assert "launched" in text and "first" in text and "__global__" not in text


CUDA = [FOLDER / name for name in NAMES if name.endswith(".cuh")]
STRUCT = re.compile(  # also inside of another
    r"^(?=( *)struct (?:alignas\(\w+\) )?(\w+)[^;{]*\{\n(.*?)^\1\};)", re.MULTILINE | re.DOTALL
)


def with_defaults() -> set[str]:
    """The names of all classes of the kernels of which a member has a default value."""
    found = set()
    for header in CUDA:
        for indent, name, body in STRUCT.findall(header.read_text()):
            members = re.findall(rf"^{indent}  (?! )(.*) = [^;]+;", body, re.MULTILINE)
            members = [m for m in members if not re.match("static|using|template", m)]
            found |= {name} if members else set()
    return found


def test_arrays_of_classes_with_default_members_have_one_dimension() -> None:
    """nvcc 13.0 gives the members their values in the first row of an array of arrays alone.

    The others were zeros: half of the channels of a half-precision convolution.
    """
    names = with_defaults()
    assert {"Channel", "Sums", "Extent"} <= names
    rows = re.compile(rf"\b(?:{'|'.join(sorted(names))})(?:<[^;=]*>)? \w+\[[^\]]+\]\[")
    for header in CUDA:
        assert not (found := rows.findall(header.read_text())), f"{header.name}: {found}"
