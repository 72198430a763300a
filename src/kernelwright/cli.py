"""The command line: arguments in, an exit code out; the work is in commands.py."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
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
from kernelwright.files import check_writable, output_path, write_atomically
from kernelwright.module_paths import model_file

if TYPE_CHECKING:
    from kernelwright.bench.timings import Timings
    from kernelwright.compiled import Compiled
    from kernelwright.report.outcome import Outcome
    from kernelwright.report.output import Output
    from kernelwright.verify.certificate import Certificate


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
    with contextlib.ExitStack() as meanwhile:
        for name, wanted in (("model", "Model"), ("candidate", "ModelNew")):
            if text := getattr(arguments, name, None):
                setattr(arguments, name, str(meanwhile.enter_context(model_file(text, wanted))))
        if arguments.json not in (None, "-"):
            _check_report(arguments)
        if _judges(arguments):
            spawn.ahead()
        from kernelwright.report.output import Output

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
    from kernelwright.report import notices
    from kernelwright.report.tables import timings_table

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
        output.notice(*notices.of_timings(outcome.timings), *outcome.timings.warnings)
    output.json(outcome.to_json())
    if outcome.output is None:
        raise VerificationError(_why_not_written(outcome), outcome.certificate)
    output.show(f"Wrote {outcome.output}")
    _judge(outcome.timings, arguments.require_speedup)


def _explain(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.details import plan_record
    from kernelwright.report import notices
    from kernelwright.report.tables import plan_table

    compiled = _compiled(arguments, output)
    output.show(plan_table(compiled))
    _show_compiled(compiled, output)
    output.json({**plan_record(compiled), "notices": notices.of_compiled(compiled)})


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
        level=arguments.level,
    )
    _show_certificate(certificate, output)
    output.json(certificate.to_json())
    if certificate.only and not certificate.failures:
        return
    if not certificate.passed:
        asked = f" at the level {arguments.level}" if certificate.level else ""
        told = f"{arguments.candidate} is not the same function as the model{asked}."
        raise VerificationError(told, certificate)


def _bench(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.bench import saved
    from kernelwright.bench.runner import bench
    from kernelwright.report import notices
    from kernelwright.report.tables import compared_table, timings_table

    baselines = arguments.baselines.split(",") if arguments.baselines else None
    if arguments.require_speedup is not None and baselines and "eager" not in baselines:
        raise InputError("--require-speedup compares with eager; add eager to --baselines.")
    before = saved.read(arguments.compare) if arguments.compare else None
    if arguments.save:
        check_writable(Path(arguments.save))
    timings = bench(
        arguments.model,
        arguments.candidate,
        arguments.device,
        arguments.precision,
        batch=arguments.batch,
        baselines=baselines,
        progress=output.progress,
        training=arguments.training,
        train=bool(arguments.training),
    )
    output.show(timings_table(timings))
    output.notice(*notices.of_timings(timings), *timings.warnings)
    if before is not None:
        rows, doubts = saved.compared(before, timings)
        output.show(compared_table(arguments.compare, rows))
        output.notice(*(f"{doubt}: the two cannot be compared as they are." for doubt in doubts))
    if arguments.save:
        write_atomically(Path(arguments.save), json.dumps(timings.to_json(), indent=2) + "\n")
    output.json({**timings.to_json(), "notices": notices.of_timings(timings)})
    _judge(timings, arguments.require_speedup)


def _profile(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.profile import Settings, difference, profile, read, with_predictions
    from kernelwright.report.tables import difference_table, profile_table

    names = ("device", "precision", "training", "batch")
    settings = Settings(**{name: getattr(arguments, name) for name in names})
    if arguments.diff is None:
        if arguments.model is None:
            raise InputError("Name a model to profile, or two with --diff A B.")
        found = profile(arguments.model, settings, arguments.calls, output.progress)
        if arguments.trace:
            write_atomically(Path(arguments.trace), json.dumps(with_predictions(found)))
        output.show(profile_table(found))
        output.notice(*(f"Mind: {sentence}." for sentence in found.notices))
        output.json(found.to_json())
        return
    if arguments.trace:
        raise InputError("--trace is of one profile; leave --diff out.")
    pair = [
        read(text)
        or profile(
            text if Path(text).exists() or arguments.model is None else arguments.model,
            settings if Path(text).exists() else settings.changed(text),
            arguments.calls,
            output.progress,
        )
        for text in arguments.diff
    ]
    rows = difference(*pair)
    output.show(difference_table(arguments.diff, pair, rows))
    output.json(
        {
            "a": pair[0].to_json(),
            "b": pair[1].to_json(),
            "difference": [asdict(row) for row in rows],
        }
    )


def _report(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.details import plan_record
    from kernelwright.report.page import report_html
    from kernelwright.report.record import recorded

    model = Path(arguments.model)
    target = Path(arguments.output or model.with_name(f"{model.stem}_report.html"))
    check_writable(target)
    record = recorded(
        model,
        arguments.recorded,
        lambda: plan_record(_compiled(arguments, output)),
    )
    write_atomically(target, report_html(record))
    output.show(f"Wrote {target}")
    output.json({"output": str(target), "lacks": list(record.lacks)})


def _compiled(arguments: argparse.Namespace, output: Output) -> Compiled:
    from kernelwright.commands import compile_file

    return compile_file(
        arguments.model,
        arguments.device,
        arguments.precision,
        output.progress,
        training=arguments.training,
    )


def _check(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.check import check_file
    from kernelwright.report.tables import checked_table

    checked = check_file(arguments.file)
    output.show(checked_table(checked))
    output.json(checked.to_json())
    checked.require()


def _doctor(arguments: argparse.Namespace, output: Output) -> None:
    from kernelwright.doctor import KERNELS, diagnose
    from kernelwright.report.machine import diagnosis_table

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
    from kernelwright.report.machine import cache_table, cleaned_table, size_line

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
    from kernelwright.sweep import sweep
    from kernelwright.sweep.asked import corpus_of, plan_of
    from kernelwright.sweep.tables import swept_table

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
    if certificate is None or any(not check.holds for check in certificate.checks):
        kept = f"; it is kept as {outcome.kept} for a report" if outcome.kept else ""
        return f"The generated model failed verification, so no file was written{kept}."
    return (
        "The model draws random numbers, so its values cannot be compared and no file was written; "
        "use --no-verify to write it uncertified."
    )


def _show_compiled(compiled: Compiled, output: Output) -> None:
    from kernelwright.report import notices
    from kernelwright.report.tables import ledger_table

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
    "profile": _profile,
    "report": _report,
    "check": _check,
    "doctor": _doctor,
    "cache": _cache,
    "sweep": _sweep,
}
