"""The command line: arguments in, an exit code out; the work is in commands.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright import interrupts, spawn, streams
from kernelwright.arguments import parser
from kernelwright.errors import (
    BuildError,
    InputError,
    InternalError,
    KernelwrightError,
    VerificationError,
)
from kernelwright.failures import debugging, unexpected
from kernelwright.files import check_writable, output_path

if TYPE_CHECKING:
    from kernelwright.bench import Timings
    from kernelwright.commands import Outcome
    from kernelwright.pipeline import Compiled
    from kernelwright.report import Output
    from kernelwright.verify import Certificate


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; every error ends as one sentence on stderr and a documented code."""
    streams.prepare()
    arguments = parser().parse_args(argv)
    try:
        if arguments.command == "completion":
            _completion(arguments)
        else:
            _run(arguments)
    except Exception as error:
        if interrupts.pressed():
            raise KeyboardInterrupt from error
        failure = _failure(error, arguments)
        if debugging() and (failure is not error or isinstance(error, InternalError)):
            raise
        streams.error(str(failure))
        return failure.exit_code
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.json not in (None, "-"):
        _check_report(arguments)
    if _judges(arguments):
        spawn.ahead()
    from kernelwright.report import Output

    output = Output(arguments.quiet, arguments.json, arguments.command)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what user code prints is no result
            COMMANDS[arguments.command](arguments, output)
    except Exception as error:
        if not interrupts.pressed():
            output.close(_failure(error, arguments))
        raise
    output.close()


def _failure(error: Exception, arguments: argparse.Namespace) -> KernelwrightError:
    return unexpected(error, getattr(arguments, "model", None))


def _check_report(arguments: argparse.Namespace) -> None:
    """The report can be written, and takes the place of no file that the command is about."""
    report = Path(arguments.json)
    check_writable(report)
    others = [getattr(arguments, name, None) for name in ("model", "candidate", "file", "output")]
    if arguments.command == "optimize":
        others.append(output_path(arguments.model, arguments.output))
    if os.path.realpath(report) in [os.path.realpath(other) for other in others if other]:
        raise InputError(f"The report would replace {report}; choose another with --json.")


def _optimize(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.commands import optimize_file
    from kernelwright.report import notices, timings_table

    if arguments.require_speedup is not None and not arguments.bench:
        raise InputError("--require-speedup needs the timings; leave --no-bench out.")
    outcome = optimize_file(
        arguments.model,
        arguments.output,
        device=arguments.device,
        precision=arguments.precision,
        training=arguments.training,
        verify=arguments.verify,
        time_it=arguments.bench,
        batch=arguments.batch,
        tune=arguments.tune,
        progress=output.progress,
        on_compiled=lambda compiled: _show_compiled(compiled, output),
        on_certified=lambda certificate: _show_certificate(certificate, output),
    )
    if outcome.timings is not None:
        output.show(timings_table(outcome.timings))
        output.notice(*notices.of_timings(outcome.timings))
    output.json(outcome.to_json())
    if outcome.output is None:
        raise VerificationError(_why_not_written(outcome), outcome.certificate)
    output.show(f"Wrote {outcome.output}")
    _judge(outcome.timings, arguments.require_speedup)


def _explain(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.commands import compile_file
    from kernelwright.report import notices, plan_table

    compiled = compile_file(
        arguments.model,
        arguments.device,
        arguments.precision,
        output.progress,
        training=arguments.training,
    )
    output.show(plan_table(compiled))
    _show_compiled(compiled, output)
    output.json({**compiled.to_json(), "notices": notices.of_compiled(compiled)})


def _verify(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.commands import verify_files

    certificate = verify_files(
        arguments.model,
        arguments.candidate,
        arguments.device,
        arguments.precision,
        arguments.quick,
        output.progress,
        arguments.training,
        only=arguments.only or (),
        thorough=arguments.thorough,
        seed=arguments.seed,
        sanitize=arguments.sanitize,
    )
    _show_certificate(certificate, output)
    output.json(certificate.to_json())
    if certificate.only and not certificate.failures:
        return
    if not certificate.passed:
        told = f"{arguments.candidate} is not the same function as the model."
        raise VerificationError(told, certificate)


def _bench(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.bench import bench
    from kernelwright.report import notices, timings_table

    baselines = arguments.baselines.split(",") if arguments.baselines else None
    if arguments.require_speedup is not None and baselines and "eager" not in baselines:
        raise InputError("--require-speedup compares with eager; add eager to --baselines.")
    timings = bench(
        arguments.model,
        arguments.candidate,
        arguments.device,
        arguments.precision,
        batch=arguments.batch,
        baselines=baselines,
        progress=output.progress,
        training=arguments.training,
    )
    output.show(timings_table(timings))
    output.notice(*notices.of_timings(timings))
    output.json({**timings.to_json(), "notices": notices.of_timings(timings)})
    _judge(timings, arguments.require_speedup)


def _check(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.check import check_file
    from kernelwright.report import checked_table

    checked = check_file(arguments.file)
    output.show(checked_table(checked))
    output.json(checked.to_json())
    checked.require()


def _doctor(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.doctor import KERNELS, diagnose
    from kernelwright.report import diagnosis_table

    diagnosis = diagnose(output.progress)
    output.show(diagnosis_table(diagnosis))
    output.json(diagnosis.to_json())
    if not diagnosis.healthy:
        raise BuildError(
            f"{KERNELS[diagnosis.backend]}, the default here, do not work; "
            "kernelwright doctor shows what to do."
        )


def _cache(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright import cache
    from kernelwright.report import cache_table, cleaned_table, size_line

    if arguments.action != "clean" and (arguments.dry_run or arguments.older_than is not None):
        raise InputError("--older-than and --dry-run belong to `kernelwright cache clean`.")
    if arguments.action == "clean":
        cleaned = cache.clean(arguments.older_than or 0.0, arguments.dry_run)
        output.show(cleaned_table(cleaned))
        output.json(cleaned.to_json())
        return
    found = cache.entries()
    if arguments.action == "list":
        output.show(cache_table(found))
    output.show(size_line(found))
    total = sum(entry.bytes for entry in found)
    listed = [entry.to_json() for entry in found]
    output.json({"folder": str(cache.root()), "bytes": total, "entries": listed})


def _sweep(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.report.sweeps import swept_table
    from kernelwright.sweep import sweep
    from kernelwright.sweep.asked import corpus_of, plan_of

    swept = sweep(corpus_of(arguments), plan_of(arguments))
    output.show(swept_table(swept))
    output.json(swept.to_json())


def _completion(arguments: argparse.Namespace) -> None:
    from kernelwright.completion import script

    with streams.results(sys.stdout):
        sys.stdout.write(script(parser(), arguments.shell))


def _judges(arguments: argparse.Namespace) -> bool:
    """Whether a candidate will run, in a process of its own."""
    if arguments.command == "optimize":
        return bool(arguments.verify or arguments.bench)
    return arguments.command in ("verify", "bench")


def _why_not_written(outcome: Outcome) -> str:
    certificate = outcome.certificate
    if certificate is None or certificate.failures:
        kept = f"; it is kept as {outcome.kept} for a report" if outcome.kept else ""
        return f"The generated model failed verification, so no file was written{kept}."
    return (
        "The model draws random numbers, so its values cannot be compared and no file was written; "
        "use --no-verify to write it uncertified."
    )


def _show_compiled(compiled: Compiled, output: Output) -> None:
    from kernelwright.report import ledger_table, notices

    output.show(ledger_table(compiled.ledger))
    output.notice(*notices.of_compiled(compiled))


def _show_certificate(certificate: Certificate, output: Output) -> None:
    from kernelwright.verify.render import render

    output.show(render(certificate))


def _judge(timings: Timings | None, wanted: float | None) -> None:
    """A time that cannot be trusted, or is not as asked for, is no success, file or not."""
    from kernelwright.report import notices

    if timings is not None and timings.problems:
        raise VerificationError(f"The timings are not valid: {timings.problems[0]}.")
    if timings is not None and wanted is not None:
        notices.require_speedup(timings, wanted)


COMMANDS = {
    "optimize": _optimize,
    "explain": _explain,
    "verify": _verify,
    "bench": _bench,
    "check": _check,
    "doctor": _doctor,
    "cache": _cache,
    "sweep": _sweep,
}
