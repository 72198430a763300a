"""The command line's grammar: every command with its options, as one argparse parser."""

from __future__ import annotations

import argparse

from kernelwright.completion import SHELLS
from kernelwright.version import __version__

EPILOG = """\
exit codes:
  0  success
  1  an error inside kernelwright (set KERNELWRIGHT_DEBUG=1 for the traceback)
  2  bad usage or input
  3  verification failed: the candidate does not compute the same function, or is not as fast as
     --require-speedup asks for, or its library is not the package's
  4  build failed: the compiler is missing, or refused the source
  5  unsupported: the model is valid, but cannot be compiled
130  interrupted by Ctrl-C
143  ended by SIGTERM

Loading a model file runs it: only give files that you would run yourself.
"""

LEVELS = ("function", "gradients", "module", "drop-in")  # of a certificate, without its torch

Commands = argparse._SubParsersAction


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(
        prog="kernelwright",
        description="Turn a PyTorch model into a faster drop-in one, certified to be the same.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main_parser.add_argument("--version", action="version", version=f"kernelwright {__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="command")
    optimize = _on_a_model(commands, "optimize", "write a certified, timed model_new.py")
    optimize.add_argument("-o", "--output", metavar="OUT", help="default: MODEL_new.py beside it")
    optimize.add_argument("--no-verify", dest="verify", action="store_false", help="do not certify")
    optimize.add_argument("--no-bench", dest="bench", action="store_false", help="do not time")
    optimize.add_argument(
        "--tune", action="store_true", help="measure a few tiles of each generated product"
    )
    _on_a_model(commands, "explain", "show the plan: what is fused, what is not, and why")
    verify = _on_a_model(commands, "verify", "certify that ModelNew of CANDIDATE is Model of MODEL")
    verify.add_argument("candidate", help="a file with class ModelNew, or module:Class")
    verify.add_argument("--quick", action="store_true", help="the most telling checks alone")
    verify.add_argument("--thorough", action="store_true", help="ten times the calls and the time")
    verify.add_argument(
        "--sanitize", action="store_true", help="run the kernels under compute-sanitizer as well"
    )
    verify.add_argument(
        "--only", action="append", metavar="NAME", help="one check, by its name; may be repeated"
    )
    verify.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="that of a certificate, to repeat it (default: random)",
    )
    verify.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[0],
        help="exit with 3 unless it is at least that (default: %(default)s)",
    )
    bench = _on_a_model(commands, "bench", "time CANDIDATE against eager and torch.compile")
    bench.add_argument("candidate", help="a file with class ModelNew, or module:Class")
    bench.add_argument(
        "--baselines",
        metavar="A,B",
        help="of eager, compile, max-autotune (not on the CPU unless named)",
    )
    bench.add_argument("--save", metavar="FILE", help="keep the timings, to compare with later")
    bench.add_argument("--compare", metavar="FILE", help="show what was saved beside them")
    for timed in (optimize, bench):
        timed.add_argument("--batch", type=int, metavar="N", help="time with N rows of the inputs")
        timed.add_argument(
            "--require-speedup",
            type=_speedup,
            metavar="X",
            help="exit with 3 unless it is at least X times as fast as eager",
        )
    _profile(commands)
    _report(commands)
    _sweep(commands)
    check = _command(
        commands, "check", "say whether the library in an emitted file is the package's"
    )
    check.add_argument("file", help="a file that `kernelwright optimize` wrote; it is not run")
    _about_the_machine(commands)
    return main_parser


def _profile(commands: Commands[argparse.ArgumentParser]) -> None:
    profile = _on_a_model(
        commands, "profile", "time every step of a model or an emitted file", optional=True
    )
    profile.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto")
    profile.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="compare two files, or the model under two settings such as precision=high",
    )
    profile.add_argument("--batch", type=int, metavar="N", help="with N rows of the inputs")
    profile.add_argument(
        "--calls", type=int, default=20, metavar="N", help="how many (default: 20)"
    )


def _report(commands: Commands[argparse.ArgumentParser]) -> None:
    report = _on_a_model(
        commands, "report", "write a page to look at: model, plan, times and certificate"
    )
    report.add_argument(
        "-o", "--output", metavar="OUT", help="default: MODEL_report.html beside it"
    )
    report.add_argument(
        "--with",
        dest="recorded",
        action="append",
        default=[],
        metavar="FILE",
        help="what a command wrote with --json; may be repeated",
    )


def _sweep(commands: Commands[argparse.ArgumentParser]) -> None:
    sweep = _command(
        commands, "sweep", "optimize a folder of problems, or judge candidates for them"
    )
    sweep.add_argument("problems", help="a folder of problems, in any form that is read")
    sweep.add_argument("--candidates", metavar="FOLDER", help="judge these, many a problem")
    sweep.add_argument("--out", metavar="RUN", required=True, help="the folder for the results")
    sweep.add_argument("--resume", action="store_true", help="go on with the results in RUN")
    sweep.add_argument("--compare", metavar="RUN2", help="with the results of another sweep")
    _machine(sweep)
    sweep.add_argument("--full", action="store_true", help="all checks, not the most telling alone")
    sweep.add_argument("--no-verify", dest="verify", action="store_false", help="do not certify")
    sweep.add_argument("--no-bench", dest="bench", action="store_false", help="do not time")
    sweep.add_argument("--baselines", metavar="A,B", default="eager", help="default: eager")
    sweep.add_argument(
        "--seconds", type=_positive, default=1.0, metavar="S", help="to time a variant (default 1)"
    )
    sweep.add_argument(
        "--harness", action="store_true", help="run each problem's own evaluator as well"
    )
    bounds = sweep.add_argument_group("bounds of a task")
    bounds.add_argument("--timeout", type=_positive, default=600.0, metavar="S", help="default 600")
    bounds.add_argument("--memory", type=_positive, metavar="GB", help="default: a share of all")
    bounds.add_argument("--disk", type=_positive, default=4.0, metavar="GB", help="default 4")
    where = sweep.add_argument_group("where it runs")
    where.add_argument("--on", choices=("here", "ray"), default="here", help="default: here")
    where.add_argument("--jobs", type=_count, metavar="N", help="tasks at a time; default: cores")
    where.add_argument(
        "--artefacts", metavar="URL", help="a folder, or any that fsspec writes; default: in RUN"
    )
    where.add_argument(
        "--address", default="local", metavar="A", help="of a Ray cluster; auto: the one running"
    )
    where.add_argument("--cpus-per-task", type=_positive, default=1.0, metavar="N", help="on Ray")
    where.add_argument(
        "--gpus-per-task",
        type=_share,
        default=0.0,
        metavar="N",
        help="on Ray; 0.25: a quarter",
    )
    where.add_argument(
        "--retries", type=_count, default=3, metavar="N", help="on Ray, of a lost task (default 3)"
    )


def _about_the_machine(commands: Commands[argparse.ArgumentParser]) -> None:
    """The commands that take no model."""
    _command(commands, "doctor", "show what is installed, and try what works here")
    cache = _command(commands, "cache", "show or clear what is kept between runs")
    cache.add_argument(
        "action",
        nargs="?",
        choices=("size", "list", "clean"),
        default="size",
        help="default: size",
    )
    cache.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="clean: only what has not been used for so long",
    )
    cache.add_argument("--dry-run", action="store_true", help="clean: remove nothing, say what")
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description='Print a completion script: eval "$(kernelwright completion bash)".',
    )
    completion.add_argument("shell", choices=SHELLS)


def _on_a_model(
    commands: Commands[argparse.ArgumentParser], name: str, what: str, optional: bool = False
) -> argparse.ArgumentParser:
    """A subcommand with the arguments that all those have that take a model."""
    command = _command(commands, name, what)
    command.add_argument(
        "model",
        nargs="?" if optional else None,
        help="a file with class Model, get_inputs and get_init_inputs; package.module or "
        "package.module:Class works too",
    )
    _machine(command)
    return command


def _machine(command: argparse.ArgumentParser) -> None:
    """On what, how exactly, and in which mode models run."""
    command.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU, if any"
    )
    command.add_argument(
        "--precision",
        choices=("current", "highest", "high", "medium"),
        default="current",
        help="of float32 matrix products; current: what torch is set to",
    )
    mode = command.add_mutually_exclusive_group()
    mode.add_argument(
        "--eval",
        dest="training",
        action="store_false",
        default=None,
        help="with the model in eval mode (default: as constructed)",
    )
    mode.add_argument(
        "--train",
        dest="training",
        action="store_true",
        default=None,
        help="with the model in train mode, its backward generated; bench: a training step besides",
    )


def _command(
    commands: Commands[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", metavar="FILE", help="write a report; - for stdout")
    command.add_argument("--quiet", action="store_true", help="errors and JSON alone")
    return command


def _speedup(text: str) -> float:
    return _at_least(text, 0.0, "a factor such as 1.5")


def _share(text: str) -> float:
    return _at_least(text, 0.0, "a number of GPUs, or a share of one")


def _positive(text: str) -> float:
    return _at_least(text, 1e-6, "a number above 0")


def _count(text: str) -> int:
    value = _at_least(text, 0.0, "a whole number")
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def _days(text: str) -> float:
    return _at_least(text, 0.0, "a number of days")


def _at_least(text: str, least: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
