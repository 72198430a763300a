"""Shell completion: the argparse parser in, a script for bash, zsh or fish out.

The one idea: the script holds nothing that the parser does not, so it cannot fall behind. A parser
is read into plain Commands first, and each shell has one printer.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Option:
    """`values` are the words that may follow, `takes` whether anything does."""

    flags: tuple[str, ...]
    help: str
    takes: bool
    values: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A subcommand: its options, and the words its positional arguments may be (else files)."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    commands = read(parser)
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parser.prog, commands)


def read(parser: argparse.ArgumentParser) -> list[Command]:
    """The subcommands of a parser, and first, with an empty name, what stands before them."""
    nested = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in nested._choices_actions}
    names = tuple(nested.choices)
    found = [Command("", "", _options(parser), names)]
    for name, sub in nested.choices.items():
        found.append(Command(name, helps.get(name, ""), _options(sub), _words(sub)))
    return found


def _options(parser: argparse.ArgumentParser) -> tuple[Option, ...]:
    return tuple(
        Option(
            tuple(action.option_strings),
            (action.help or "").replace("%%", "%"),
            action.nargs != 0,
            tuple(map(str, action.choices or ())),
        )
        for action in parser._actions
        if action.option_strings and action.help is not argparse.SUPPRESS
    )


def _words(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    positional = [a for a in parser._actions if not a.option_strings]
    return tuple(str(c) for a in positional for c in a.choices or ())


def _bash(prog: str, commands: list[Command]) -> str:
    """One function: the subcommand is the first word that is no option."""
    top, *rest = commands
    cases = "".join(
        f"        {c.name}) options={_quoted(_flags(c))}; words={_quoted(c.words)};;\n"
        for c in rest
    )
    values = "".join(
        f"        {'|'.join(c.name + ':' + flag for flag in o.flags)}) "
        f'COMPREPLY=($(compgen -W {_quoted(o.values)} -- "$current")); return;;\n'
        for c in rest
        for o in c.options
        if o.values
    )
    files = "|".join(
        f"{c.name}:{flag}"
        for c in rest
        for o in c.options
        if o.takes and not o.values
        for flag in o.flags
    )
    return f"""\
# bash completion for {prog}; to use it: eval "$({prog} completion bash)"
_{prog}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" options={_quoted(_flags(top))} words={_quoted(top.words)} i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in
            -*) ;;
            *) command="${{COMP_WORDS[i]}}"; break;;
        esac
    done
    case "$command" in
{cases}    esac
    case "$command:$before" in
{values}        {files}) COMPREPLY=($(compgen -f -- "$current")); return;;
    esac
    if [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    elif [[ -n "$words" ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _{prog} {prog}
"""


def _zsh(prog: str, commands: list[Command]) -> str:
    """`_arguments` with one specification an option, for each subcommand."""
    top, *rest = commands
    listed = "\n".join(f"        {_quoted([f'{c.name}:{_plain(c.help)}'])}" for c in rest)
    cases = []
    for command in rest:
        specs = [_zsh_option(flag, o) for o in command.options for flag in o.flags]
        specs.append(f"*:: :({' '.join(command.words)})" if command.words else "*: :_files")
        lines = " \\\n".join(f"                {shlex.quote(spec)}" for spec in specs)
        cases.append(f"            {command.name}) _arguments \\\n{lines} ;;")
    body = "\n".join(cases)
    return f"""\
#compdef {prog}
# zsh completion for {prog}; to use it: eval "$({prog} completion zsh)" after compinit
_{prog}() {{
    local -a commands=(
{listed}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        compadd -- {" ".join(_flags(top))}
    else
        local name="${{words[2]}}"
        shift words
        (( CURRENT-- ))
        case "$name" in
{body}
        esac
    fi
}}
compdef _{prog} {prog}
"""


def _zsh_option(flag: str, option: Option) -> str:
    text = _plain(option.help).replace("[", "(").replace("]", ")")
    if not option.takes:
        return f"{flag}[{text}]"
    return f"{flag}[{text}]: :" + (f"({' '.join(option.values)})" if option.values else "_files")


def _fish(prog: str, commands: list[Command]) -> str:
    """One `complete` a word; the condition is the subcommand."""
    top, *rest = commands
    lines = [f"# fish completion for {prog}; to use it: {prog} completion fish | source"]
    lines += [_fish_option(prog, "__fish_use_subcommand", o) for o in top.options]
    for command in rest:
        about = shlex.quote(_plain(command.help))
        lines.append(f"complete -c {prog} -n __fish_use_subcommand -f -a {command.name} -d {about}")
    for command in rest:
        when = f"'__fish_seen_subcommand_from {command.name}'"
        lines += [_fish_option(prog, when, o) for o in command.options]
        if command.words:
            words = shlex.quote(" ".join(command.words))
            lines.append(f"complete -c {prog} -n {when} -f -a {words}")
    return "\n".join(lines) + "\n"


def _fish_option(prog: str, when: str, option: Option) -> str:
    parts = [f"complete -c {prog} -n {when}"]
    for flag in option.flags:
        parts.append(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}")
    if option.takes:
        parts.append("-r" + (f" -f -a {_quoted(option.values)}" if option.values else ""))
    return " ".join([*parts, f"-d {shlex.quote(_plain(option.help))}"])


def _flags(command: Command) -> list[str]:
    return [flag for option in command.options for flag in option.flags]


def _quoted(words: list[str] | tuple[str, ...]) -> str:
    """One shell word, whatever is in it."""
    return "'" + " ".join(words).replace("'", "'\\''") + "'"


def _plain(text: str) -> str:
    return " ".join(text.split())
