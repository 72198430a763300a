"""C++ headers as trees: what stands at the level of namespaces, and what each part mentions.

In: the text of a header. Out: its definitions in order, inside of the namespaces and preprocessor
conditionals around them, each with the comment above it, the names that it defines and those that
it refers to. The text is read token by token, so its layout does not matter. Whatever is not
understood is a definition without a name, and whoever prunes has to keep it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<directive>(?:(?<=\n)|\A)[ \t]*\#(?:\\.|[^\n\\])*)
    | (?P<string>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<sign>::|->|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
OPEN, CLOSE = "([{", ")]}"
# Words that a parenthesised list belongs to, in front of what is declared.
WITH_LIST = ("alignas", "decltype", "explicit", "noexcept", "__align__", "__attribute__",
             "__launch_bounds__")  # fmt: skip
KINDS = ("struct", "class", "union", "enum")
MACRO_CALL = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Word:
    """A name that is mentioned: `split::Job` is Job of split, `Job` may be anybody's.

    In front of `::` a name can mean a type or a namespace, and nothing else.
    """

    name: str
    owner: str | None = None
    is_scope: bool = False


@dataclass(frozen=True, eq=False)
class Definition:
    """A declaration or definition with the comment above it; without a name it is not understood.

    `shape` are the words of what tells it from others of its name: the parameters of a function,
    the arguments of a specialisation.
    """

    text: str
    kind: str
    name: str | None
    namespace: tuple[str, ...]
    words: frozenset[Word]
    shape: frozenset[str] = frozenset()
    gap: bool = True


@dataclass(frozen=True, eq=False)
class Note:
    """A comment that stands alone, as a title of what follows."""

    text: str
    gap: bool = True


@dataclass(eq=False)
class Namespace:
    opening: str
    names: tuple[str, ...]
    inside: list[Part] = field(default_factory=list)
    closing: str = ""


@dataclass(eq=False)
class Conditional:
    """Branches of `#if`, each a directive and what it guards."""

    branches: list[tuple[str, list[Part]]] = field(default_factory=list)
    closing: str = "#endif"
    gap: bool = True


Part = Definition | Note | Namespace | Conditional


def tokens(text: str) -> list[Token]:
    return [Token(str(m.lastgroup), m.group(), m.start(), m.end()) for m in TOKEN.finditer(text)]


def mentioned(text: str) -> frozenset[Word]:
    """Every name in a text that may be one of a library's; members of objects are not."""
    return frozenset(_words(tokens(text)))


def read(text: str) -> list[Part]:
    """The parts of a header, in order."""
    reader = _Reader(text)
    parts = reader.parts(())
    if reader.at < len(reader.tokens):
        raise ValueError(f"unbalanced {reader.tokens[reader.at].text!r} in a header")
    return parts


def definitions(
    parts: list[Part], around: tuple[str, ...] = ()
) -> Iterator[tuple[Definition, str]]:
    """All definitions with the directives that guard them, as one text."""
    for part in parts:
        if isinstance(part, Definition):
            yield part, "\n".join(around)
        elif isinstance(part, Namespace):
            yield from definitions(part.inside, around)
        elif isinstance(part, Conditional):
            guards = tuple(directive for directive, _ in part.branches)
            for _, inside in part.branches:
                yield from definitions(inside, (*around, *guards))


class _Reader:
    """One walk over the tokens of a header."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.at = 0

    def parts(self, namespace: tuple[str, ...]) -> list[Part]:
        """Everything up to the end of the text, of the namespace or of the branch."""
        found: list[Part] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.text == "}" or (token.kind == "directive" and _directive(token) in BRANCHES):
                break
            found.append(self._part(namespace))
        return found

    def _part(self, namespace: tuple[str, ...]) -> Part:
        first = self.at
        while self._kind() == "comment":
            self.at += 1
            alone = self.at == len(self.tokens) or self._blank(self.at)
            if alone or self.tokens[self.at].text == "}" or self._opens_or_ends():
                return Note(self._between(first, self.at), self._blank(first))
        if self._kind() == "directive":
            return self._directive(first, namespace)
        if self._opens_namespace():
            return self._namespace(namespace)
        return self._definition(first, namespace)

    def _opens_or_ends(self) -> bool:
        """Whether what comes next is no definition that a comment could belong to."""
        token = self.tokens[self.at]
        if token.kind == "directive":
            return _directive(token) != "define"
        return self._opens_namespace()

    # ---- where the reader stands -------------------------------------------------------------

    def _kind(self) -> str:
        return self.tokens[self.at].kind if self.at < len(self.tokens) else ""

    def _blank(self, index: int) -> bool:
        """Whether an empty line stands in front of a token."""
        before = self.tokens[index - 1].end if index else 0
        after = self.tokens[index].start if index < len(self.tokens) else len(self.text)
        return index == 0 or self.text.count("\n", before, after) > 1

    def _between(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last - 1].end]

    def _with_comment_behind(self) -> None:
        """A comment on the line of an end belongs to what ended there."""
        if self._kind() == "comment":
            before, token = self.tokens[self.at - 1], self.tokens[self.at]
            if "\n" not in self.text[before.end : token.start]:
                self.at += 1

    # ---- directives and namespaces -----------------------------------------------------------

    def _directive(self, first: int, namespace: tuple[str, ...]) -> Part:
        token = self.tokens[self.at]
        word = _directive(token)
        if word in ("if", "ifdef", "ifndef"):
            return self._conditional(namespace)
        self.at += 1
        text = self._between(first, self.at)
        inside = tokens(token.text.split("#", 1)[1])
        if word == "define":
            words = frozenset(_words(inside[2:])) - {Word(inside[1].text)}
            return Definition(text, "macro", inside[1].text, (), words, gap=self._blank(first))
        kind = "include" if word == "include" else "other"
        return Definition(text, kind, None, (), frozenset(), gap=self._blank(first))

    def _conditional(self, namespace: tuple[str, ...]) -> Conditional:
        found = Conditional(gap=self._blank(self.at))
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if _directive(token) == "endif":
                found.closing = token.text.strip()
                self._with_comment_behind()
                return found
            found.branches.append((token.text.strip(), self.parts(namespace)))
        raise ValueError("an #if of a header has no #endif")

    def _opens_namespace(self) -> bool:
        if self._kind() != "word" or self.tokens[self.at].text != "namespace":
            return False
        ahead = (t.text for t in self.tokens[self.at :])
        return next((t for t in ahead if t in "{;="), ";") == "{"

    def _namespace(self, namespace: tuple[str, ...]) -> Namespace:
        first = self.at
        while self.tokens[self.at].text != "{":
            self.at += 1
        names = tuple(t.text for t in self.tokens[first + 1 : self.at] if t.kind == "word")
        self.at += 1
        found = Namespace(self._between(first, self.at), names)
        found.inside = self.parts((*namespace, *names))
        closing = self.at
        if closing == len(self.tokens):
            raise ValueError(f"namespace {'::'.join(names)} of a header does not end")
        self.at += 1
        self._with_comment_behind()
        found.closing = self._between(closing, self.at)
        return found

    # ---- definitions -------------------------------------------------------------------------

    def _definition(self, first: int, namespace: tuple[str, ...]) -> Definition:
        gap, start = self._blank(first), self.at
        code = [t for t in self._declaration() if t.kind not in ("comment", "directive")]
        every = self.tokens[start : self.at]
        self._with_comment_behind()
        kind, name, shape = _described(code)
        words = [*_words(code)]
        for token in every:
            if token.kind == "directive":
                words += _words(tokens(token.text.split("#", 1)[1]))
        return Definition(
            self._between(first, self.at), kind, name, namespace, frozenset(words), shape, gap
        )

    def _declaration(self) -> list[Token]:
        """The tokens of one declaration, in all branches of the conditionals inside of it."""
        first, depth, skipping, opened = self.at, 0, 0, 0
        invocation = self._is_invocation()
        self.at = _behind_templates(self.tokens, self.at)
        needs_semicolon = self.tokens[self.at].text in (*KINDS, "using", "typedef")
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "directive":
                word = _directive(token)
                opened += (word in ("if", "ifdef", "ifndef")) - (word == "endif")
                # Braces of the first branch count: they open and close in each branch alike.
                if word in ("elif", "else") and not skipping:
                    skipping = opened
                elif word == "endif" and skipping > opened:
                    skipping = 0
            elif token.kind == "sign" and not skipping:
                depth += (token.text in OPEN) - (token.text in CLOSE)
                if depth < 0:
                    break
                needs_semicolon |= depth == 0 and token.text == "="
                ends = token.text == ";" or (token.text == ")" and invocation)
                ends |= token.text == "}" and not needs_semicolon
                if depth == 0 and ends:
                    self.at += 1
                    if token.text != ";" and self._next_is(";"):
                        self.at += 1
                    return self.tokens[first : self.at]
            self.at += 1
        raise ValueError(f"{self.text[self.tokens[first].start :][:60]!r} of a header does not end")

    def _is_invocation(self) -> bool:
        """Whether this is a macro that stands for definitions: `PRODUCTS(a, b)`, no semicolon."""
        word = self.tokens[self.at]
        called = self.at + 1 < len(self.tokens) and self.tokens[self.at + 1].text == "("
        return word.kind == "word" and called and MACRO_CALL.fullmatch(word.text) is not None

    def _next_is(self, text: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at].text == text


BRANCHES = ("elif", "else", "endif")


def _directive(token: Token) -> str:
    return re.sub(r"\W*(\w+).*", r"\1", token.text, flags=re.DOTALL)


def _words(code: list[Token]) -> Iterator[Word]:
    code = [t for t in code if t.kind != "comment"]
    for i, token in enumerate(code):
        if token.kind == "directive":
            yield from _words(tokens(token.text.split("#", 1)[1]))
        if token.kind != "word":
            continue
        before = code[i - 1].text if i else ""
        if before == "template" and i > 1:
            before = code[i - 2].text
        scope = i + 1 < len(code) and code[i + 1].text == "::"
        if before in (".", "->"):
            continue
        if before != "::":
            yield Word(token.text, None, scope)
        elif i > 1 and code[i - 2].kind == "word":
            yield Word(token.text, code[i - 2].text, scope)
        elif i < 2 or code[i - 2].text != ">":
            yield Word(token.text, "", scope)


def _described(code: list[Token]) -> tuple[str, str | None, frozenset[str]]:
    """What kind of thing is declared, its name, and the words that tell it from its namesakes."""
    if len(code) > 1 and code[1].text == "(" and MACRO_CALL.fullmatch(code[0].text):
        return "invocation", code[0].text, frozenset()
    rest = code[_behind_templates(code, 0) :]
    texts = [t.text for t in rest]
    if not texts or texts[0] in ("static_assert", "namespace"):
        return "other", None, frozenset()
    if texts[0] == "extern" and texts[1].startswith('"'):
        return "exported", None, frozenset()
    if texts[0] == "using":
        known = len(texts) > 2 and texts[2] in ("=", "__attribute__")
        return ("type", texts[1], frozenset()) if known else ("other", None, frozenset())
    if texts[0] in KINDS:
        return _type(rest)
    return _function_or_variable(rest)


def _behind_templates(code: list[Token], at: int) -> int:
    while at + 1 < len(code) and code[at].text == "template" and code[at + 1].text == "<":
        at = _closed(code, at + 1)
    return at


def _closed(code: list[Token], at: int) -> int:
    """Behind the bracket that closes the one here; inside of others, < and > are comparisons."""
    angles = nested = 0
    pointed = code[at].text == "<"
    while at < len(code):
        text = code[at].text if code[at].kind == "sign" else ""
        nested += (text != "" and text in OPEN) - (text != "" and text in CLOSE)
        if not nested:
            angles += (text == "<") - (text == ">")
        at += 1
        if (pointed and angles == 0) or (not pointed and nested == 0):
            return at
    return at


def _type(code: list[Token]) -> tuple[str, str | None, frozenset[str]]:
    at = 1
    while at < len(code) and (code[at].text in (*KINDS, *WITH_LIST) or code[at].text == "["):
        at = _closed(code, at + 1) if code[at].text in WITH_LIST else (
            _closed(code, at) if code[at].text == "[" else at + 1
        )  # fmt: skip
    if at + 1 >= len(code) or code[at].kind != "word":
        return "other", None, frozenset()
    name, shape, behind = code[at].text, frozenset[str](), at + 1
    if code[behind].text == "<":
        behind = _closed(code, behind)
        shape = frozenset(t.text for t in code[at + 1 : behind] if t.kind == "word")
    if behind >= len(code) or code[behind].text not in ("{", ":", ";", "final"):
        return "other", None, frozenset()  # a function or variable of this type
    return "type", name, shape


def _function_or_variable(code: list[Token]) -> tuple[str, str | None, frozenset[str]]:
    at, name, member = 0, None, False
    while at < len(code):
        token = code[at]
        if token.text == "operator":
            return "other", None, frozenset()
        if token.text in WITH_LIST and at + 1 < len(code) and code[at + 1].text == "(":
            at = _closed(code, at + 1)
        elif token.text == "<" or (token.text == "[" and name is None):
            at = _closed(code, at)
        elif token.kind == "word":
            name, member = token.text, at > 0 and code[at - 1].text == "::"
            at += 1
        elif token.text in ("(", "=", "{", ";", "["):
            break
        else:
            at += 1
    if name is None or member or at >= len(code):
        return "other", None, frozenset()  # among them members, defined outside of their class
    if code[at].text != "(":
        return "variable", name, frozenset()
    head = code[: _closed(code, at)]
    return "function", name, frozenset(t.text for t in head if t.kind == "word") - {name}


# ---- conditionals that are decided ----------------------------------------------------------


def resolved(text: str, known: Mapping[str, bool]) -> str:
    """The text without the branches that can never be taken where these macros are (un)defined."""
    lines: list[str] = []
    frames: list[_Frame] = []
    for line in text.splitlines():
        match = re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*)", line)
        visible = all(f.emitting for f in frames)
        if match is None:
            if visible:
                lines.append(line)
            continue
        word, condition = match.groups()
        if word in ("if", "ifdef", "ifndef"):
            frames.append(_Frame(_decided(word, condition, known) if visible else None))
            frame = frames[-1]
            if visible and frame.guarded:
                lines.append(line)
            continue
        frame = frames[-1]
        around = all(f.emitting for f in frames[:-1])
        if word == "endif":
            frames.pop()
            if around and frame.guarded:
                lines.append(line)
            continue
        written = frame.next(True if word == "else" else _decided("if", condition, known))
        if around and written:
            lines.append({"same": line, "else": "#else", "if": f"#if {condition}"}[written])
    return "\n".join(lines) + "\n"


class _Frame:
    """One conditional on the way: which of its branches stay, and whether directives do."""

    def __init__(self, first: bool | None) -> None:
        self.guarded = first is None  # directives are written
        self.over = first is True  # a branch that is always taken was seen
        self.emitting = first is not False

    def next(self, value: bool | None) -> str:
        """The directive of the next branch: the `same`, `else`, `if` (now the first), or none."""
        self.emitting = not self.over and value is not False
        if not self.emitting:
            return ""
        self.over = value is True
        if value is True:
            return "else" if self.guarded else ""
        before, self.guarded = self.guarded, True
        return "same" if before else "if"


def _decided(word: str, condition: str, known: Mapping[str, bool]) -> bool | None:
    condition = condition.split("//")[0].strip()
    if word in ("ifdef", "ifndef"):
        value = known.get(condition)
        return value if value is None or word == "ifdef" else not value
    if match := re.fullmatch(r"(!?)\s*defined\s*\(\s*(\w+)\s*\)", condition):
        value = known.get(match.group(2))
        return value if value is None or not match.group(1) else not value
    if match := re.fullmatch(r"(\w+)\s*>=\s*(\d+)", condition):  # what is undefined counts as 0
        return None if known.get(match.group(1), True) else int(match.group(2)) == 0
    return None
