"""The command line: arguments in, an exit code out; the work is in commands.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright import __version__
from kernelwright.errors import KernelwrightError, VerificationError
from kernelwright.files import check_writable

if TYPE_CHECKING:
    from kernelwright.bench import Timings
    from kernelwright.report import Output
    from kernelwright.verify import Certificate

EPILOG = """\
exit codes:
  0  success
  1  an error inside kernelwright (set KERNELWRIGHT_DEBUG=1 for the traceback)
  2  bad usage or input
  3  verification failed: the candidate does not compute the same function
  4  build failed: the compiler is missing, or refused the source
  5  unsupported: the model is valid, but cannot be compiled

Loading a model file runs it: only give files that you would run yourself.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; every error ends as one sentence on stderr and a documented code."""
    arguments = parser().parse_args(argv)
    from kernelwright.report import Output

    output = Output(arguments.quiet, arguments.json)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what user code prints is no result
            if arguments.json not in (None, "-"):
                check_writable(Path(arguments.json))
            COMMANDS[arguments.command](arguments, output)
    except KernelwrightError as error:
        output.error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        output.error("Interrupted.")
        return 130
    except Exception as error:
        if os.environ.get("KERNELWRIGHT_DEBUG"):
            raise
        output.error(f"Unexpected {type(error).__name__}: {error}")
        return 1
    return 0


def _optimize(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.commands import optimize_file
    from kernelwright.report import ledger_table, timings_table

    outcome = optimize_file(
        arguments.model,
        arguments.output,
        device=arguments.device,
        precision=arguments.precision,
        verify=arguments.verify,
        time_it=arguments.bench,
        batch=arguments.batch,
        tune=arguments.tune,
        progress=output.progress,
        on_compiled=lambda compiled: output.show(ledger_table(compiled.ledger)),
        on_certified=lambda certificate: _show_certificate(certificate, output),
    )
    if outcome.timings is not None:
        output.show(timings_table(outcome.timings))
    output.json(outcome.to_json())
    if outcome.output is None:
        raise VerificationError(_why_not_written(outcome.certificate))
    output.show(f"Wrote {outcome.output}")
    _refuse_invalid(outcome.timings)


def _explain(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.commands import compile_file
    from kernelwright.report import ledger_table, plan_table

    compiled = compile_file(arguments.model, arguments.device, arguments.precision, output.progress)
    output.show(plan_table(compiled))
    output.show(ledger_table(compiled.ledger))
    output.json(compiled.to_json())


def _verify(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.commands import verify_files

    certificate = verify_files(
        arguments.model,
        arguments.candidate,
        arguments.device,
        arguments.precision,
        arguments.quick,
        output.progress,
    )
    _show_certificate(certificate, output)
    output.json(certificate.to_json())
    if not certificate.passed:
        raise VerificationError(f"{arguments.candidate} is not the same function as the model.")


def _bench(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.bench import bench
    from kernelwright.report import timings_table

    timings = bench(
        arguments.model,
        arguments.candidate,
        arguments.device,
        arguments.precision,
        batch=arguments.batch,
        baselines=arguments.baselines.split(",") if arguments.baselines else None,
        progress=output.progress,
    )
    output.show(timings_table(timings))
    output.json(timings.to_json())
    _refuse_invalid(timings)


def _why_not_written(certificate: Certificate | None) -> str:
    if certificate is None or certificate.failures:
        return "The generated model failed verification, so no file was written."
    return (
        "The model draws random numbers, so its values cannot be compared and no file was written; "
        "use --no-verify to write it uncertified."
    )


def _show_certificate(certificate: Certificate, output: Output) -> None:
    from kernelwright.verify.render import render

    output.show(render(certificate))


def _refuse_invalid(timings: Timings | None) -> None:
    """A time that cannot be trusted is not a success, even where a file was written before."""
    if timings is not None and timings.problems:
        raise VerificationError(f"The timings are not valid: {timings.problems[0]}.")


COMMANDS = {"optimize": _optimize, "explain": _explain, "verify": _verify, "bench": _bench}


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(
        prog="kernelwright",
        description="Turn a PyTorch model into a faster drop-in one, certified to be the same.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main_parser.add_argument("--version", action="version", version=f"kernelwright {__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="command")
    optimize = _command(commands, "optimize", "write a certified, timed model_new.py")
    optimize.add_argument("-o", "--output", metavar="OUT", help="default: MODEL_new.py beside it")
    optimize.add_argument("--no-verify", dest="verify", action="store_false", help="do not certify")
    optimize.add_argument("--no-bench", dest="bench", action="store_false", help="do not time")
    optimize.add_argument(
        "--tune", action="store_true", help="measure a few tiles of each generated product"
    )
    _command(commands, "explain", "show the plan: what is fused, what is not, and why")
    verify = _command(commands, "verify", "certify that ModelNew of CANDIDATE is Model of MODEL")
    verify.add_argument("candidate", help="a file with class ModelNew")
    verify.add_argument("--quick", action="store_true", help="fewer cases of each check")
    bench = _command(commands, "bench", "time CANDIDATE against eager and torch.compile")
    bench.add_argument("candidate", help="a file with class ModelNew")
    bench.add_argument(
        "--baselines",
        metavar="A,B",
        help="of eager, compile, max-autotune (not on the CPU unless named)",
    )
    for timed in (optimize, bench):
        timed.add_argument("--batch", type=int, metavar="N", help="time with N rows of the inputs")
    return main_parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    """A subcommand with the arguments that all of them have."""
    command = commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("model", help="a file with class Model, get_inputs and get_init_inputs")
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    command.add_argument(
        "--precision", choices=("current", "highest", "high", "medium"), default="current"
    )
    command.add_argument("--json", metavar="FILE", help="write a report; - for stdout")
    command.add_argument("--quiet", action="store_true", help="errors and JSON alone")
    return command
