"""verify: the judge, which runs no user code, and the two processes that do.

In: two paths. Out: a Certificate. The one idea: the judge holds the seed, the inputs, the results
and the verdict, and believes of the candidate's process nothing but tensors. Whatever happens to a
process is charged to the check that was running, and a new one goes on with the rest.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

import torch

from kernelwright.errors import BuildError, InputError, KernelwrightError
from kernelwright.failures import debugging
from kernelwright.loading import read_source
from kernelwright.problem import resolve_device, resolve_precision
from kernelwright.verify import saved
from kernelwright.verify.blame import blamed
from kernelwright.verify.certificate import FUNCTION, LEVELS, SANITIZER, Certificate, Check, Finding
from kernelwright.verify.checks import MAIN, ROWS, TABLE, Row
from kernelwright.verify.checks.fallbacks import count_fallbacks, judge_fallbacks
from kernelwright.verify.inputs import Inputs
from kernelwright.verify.judge import attempted
from kernelwright.verify.processes import Server, printable, unreadable
from kernelwright.verify.sanitizer import sanitized
from kernelwright.verify.side import Broken, Raised
from kernelwright.verify.subject import Job, Reference, Subject

SECONDS, THOROUGH_SECONDS = 1200.0, 6000.0
RESTARTS = 4
HANGS = 1  # after which a candidate gets another process
FIRST = TABLE[0].name
FILE = "the file"
UNREACHED = "not run: the time was over, or the candidate's processes were"
MOST_PADDING = 3  # calls between two checks, drawn from the seed


@dataclass
class Session:
    """A verification under way: what was found so far, and until when."""

    job: Job
    time_limit: float
    progress: Callable[[str], None] | None
    checks: list[Check] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    restarts: int = 0
    hangs: int = 0
    sanitize: bool = False
    asked: str = FUNCTION
    apart: str = ""
    uses: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.time_limit
        self.chance = random.Random(self.job.number("order"))

    def patience(self, check: str) -> float:
        """Until when a check may take: none may take all of the time from the others."""
        return min(self.deadline, time.monotonic() + self.share(check))

    def share(self, check: str) -> float:
        """The seconds that a check may have of its own; the first one builds."""
        return self.time_limit * (0.5 if check == FIRST else 0.25)

    def order(self, rows: Sequence[Row]) -> list[Row]:
        """Those that are first, then the others by level, and in each as the seed has it."""
        others = [row for row in rows if not row.first]
        self.chance.shuffle(others)
        others.sort(key=lambda row: LEVELS.index(row.level))
        return [row for row in rows if row.first] + others


def verify(
    model_path: str | Path,
    candidate_path: str | Path,
    device: str = "auto",
    precision: str = "current",
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    quick: bool = False,
    thorough: bool = False,
    only: Sequence[str] = (),
    seed: int | None = None,
    training: bool | None = None,
    sanitize: bool = False,
    level: str = FUNCTION,
) -> Certificate:
    """Certify that ModelNew in one file computes the same function as Model in another.

    All levels are tried, and the certificate passes if `level` holds. `training` is the mode to
    start from, by default the one in which Model is constructed. `only` names single checks,
    `thorough` gives all of them ten times the time and makes those that take much memory,
    `sanitize` runs the kernels under compute-sanitizer as well, and `seed`, which is the operating
    system's by default, repeats a run.
    """
    if level not in LEVELS:
        raise InputError(f"There is no level {level!r}; it is one of {', '.join(LEVELS)}.")
    job = job_for(model_path, candidate_path, device, precision, training, seed, thorough, quick)
    rows = chosen(only, quick, thorough)
    limit = time_limit or (THOROUGH_SECONDS if thorough else SECONDS)
    with unreadable(), Server() as server:
        session = Session(job, limit, progress, sanitize=sanitize, asked=level)
        return certify(session, server, rows, tuple(only))


def job_for(
    model_path: str | Path,
    candidate_path: str | Path,
    device: str = "auto",
    precision: str = "current",
    training: bool | None = None,
    seed: int | None = None,
    thorough: bool = False,
    quick: bool = False,
) -> Job:
    """What is to be verified; the candidate's text is read here, once and for all."""
    for path in (model_path, candidate_path):
        if not Path(path).is_file():
            raise InputError(f"There is no file {path}; give the path of a Python file.")
    candidate = Path(candidate_path)
    return Job(
        str(model_path),
        str(candidate),
        None if candidate.suffix == saved.SUFFIX else read_source(candidate),
        str(resolve_device(device)),
        resolve_precision(precision),
        bool(torch.backends.cudnn.allow_tf32),
        training,
        secrets.randbits(48) if seed is None else seed,
        thorough,
        quick,
    )


def chosen(only: Sequence[str], quick: bool = False, thorough: bool = False) -> list[Row]:
    """The rows of the table to run."""
    for name in only:
        if name not in ROWS:
            near = get_close_matches(name, ROWS, 1) or [TABLE[3].name]
            raise InputError(f"There is no check {name!r}; did you mean {near[0]!r}?")
    if only:
        return [row for row in TABLE if row.name in only]
    wanted = [row for row in TABLE if row.quick or not quick]
    return [row for row in wanted if thorough or not row.thorough]


def certify(
    session: Session,
    server: Server,
    rows: Sequence[Row],
    only: tuple[str, ...] = (),
    reference: Reference | None = None,
) -> Certificate:
    """Run the checks of some rows, each of which can fail in its own way, and sum them up."""
    job = session.job
    before = {path: sha256(path) for path in (job.candidate, job.model)}
    with _subject(session, server, rows, reference) as subject:
        if subject is not None:
            for row in session.order(rows):
                if not _run(session, subject, row):
                    break
            if session.sanitize:
                session.checks.append(sanitized(job, subject.reference))
    found = {check.name: check for check in session.checks}
    checks = [
        found.get(
            row.name,
            Check(row.name, None, UNREACHED, level=row.level),
        )
        for row in rows
    ]
    unrun = tuple(row.name for row in rows if row.name not in found)
    checks += [found[SANITIZER]] if SANITIZER in found else []
    checks += [judge_fallbacks(checks, MAIN), _same_files(before)]
    return Certificate(
        job.model,
        job.candidate,
        job.device,
        job.precision,
        tuple(checks),
        tuple(session.weak),
        count_fallbacks(checks),
        tuple(dict.fromkeys(session.limits)),
        job.seed,
        before[job.candidate],
        before[job.model],
        only,
        unrun,
        session.asked,
        session.apart,
        dict(session.uses.most_common()),
        dict(session.pairs.most_common()),
    )


@contextmanager
def _subject(
    session: Session, server: Server, rows: Sequence[Row], reference: Reference | None
) -> Iterator[Subject | None]:
    """The two processes, loaded; None if the candidate cannot even be loaded."""
    kept = reference is not None
    try:
        reference = reference or Reference(session.job, server)
    except Broken as error:
        raise _not_run(error) from error
    subject: Subject | None = None
    try:
        subject = Subject(session.job, server, reference, session.deadline)
    except Broken as error:
        if not reference.side.running:
            raise _not_run(error) from error
        _charge(session, rows[0], f"{error} while loading the files", error.log)
    except Raised as error:
        raise InputError(f"{session.job.candidate} raised {error} while it was loaded.") from error
    except KernelwrightError:
        raise
    except Exception as error:
        if debugging():
            raise
        _charge(session, rows[0], _ended_by(error))
    if subject is not None:
        session.apart = subject.apart
    try:
        yield subject
    finally:
        if subject is not None:
            subject.close()
        if not kept:
            reference.close()


def _not_run(error: Broken) -> InputError:
    return InputError(f"The model could not be run: {error}. {error.log}")


def _run(session: Session, subject: Subject, row: Row) -> bool:
    """One check, and whether there is anything left that can run the next."""
    if time.monotonic() > session.deadline:
        return False
    if session.progress is not None:
        session.progress(row.name)
    subject.until(session.patience(row.name))
    start = time.perf_counter()
    try:
        if not row.first:
            _pad(session, subject)
        check, finding = run_check(subject, row)
        subject.side.ask("reset")
    except Broken as error:
        seconds = time.perf_counter() - start
        if time.monotonic() >= session.deadline and seconds < session.share(row.name):
            return False  # all of the time is over, which is nobody's fault
        _charge(session, row, f"{error} while running the check {row.name}", error.log, seconds)
        session.hangs += error.silent
        return session.hangs <= HANGS and _restarted(session, subject)
    except Exception as error:
        if debugging() or (isinstance(error, BuildError) and not session.checks):
            raise
        _charge(session, row, _ended_by(error))
        return _restarted(session, subject)
    session.checks.append(check)
    session.weak += finding.weak
    session.limits += finding.limits
    for rules in finding.drawn:
        session.uses.update(rules)
        session.pairs.update(f"{a}, {b}" for a, b in pairwise(rules))
    return True


def _restarted(session: Session, subject: Subject) -> bool:
    session.restarts += 1
    if session.restarts > RESTARTS or time.monotonic() > session.deadline:
        return False
    subject.until(session.deadline)
    try:
        subject.restart()
    except Exception:
        return False
    return True


def _pad(session: Session, subject: Subject) -> None:
    """A few calls that nobody looks at: a candidate cannot count on being the n-th."""
    for _ in range(session.chance.randint(0, MOST_PADDING)):
        inputs = subject.draw(subject.small, session.chance.randrange(3))
        attempted(lambda: subject.candidate(inputs))  # noqa: B023


def run_check(subject: Subject, row: Row) -> tuple[Check, Finding]:
    """One check, with what it found."""
    before = Counter(subject.fallbacks or {})
    start = time.perf_counter()
    try:
        subject.use(row.parameters)
        finding = row.find(subject)
    except (BuildError, Broken):
        raise
    except Exception as error:
        if debugging() and not isinstance(error, Raised | KernelwrightError):
            raise
        finding = Finding(False, _ended_by(error))
        if subject.side.running and subject.reference.side.running:
            subject.restart()
    after = subject.fallbacks
    check = Check(
        row.name,
        finding.passed,
        printable(finding.detail + _blame(subject, finding)),
        finding.error,
        finding.eager_error,
        finding.allowed,
        round(time.perf_counter() - start, 3),
        None if after is None else dict(Counter(after) - before),
        finding.log,
        row.level,
        finding.limits,
    )
    return check, finding


def _ended_by(error: Exception) -> str:
    """Whatever goes wrong over what a candidate did or sent is its own failure."""
    said = str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {error}"
    return f"the check was ended by {printable(said)[:300]}"


def _blame(subject: Subject, finding: Finding) -> str:
    """For a file of ours, which of its kernels is wrong."""
    if finding.passed is not False or not isinstance(finding.inputs, Inputs):
        return ""
    try:
        sentence = blamed(subject, finding.inputs)
    except Broken:
        raise
    except Exception:  # the finding stands, whatever is said of its cause
        return ""
    return "" if sentence is None else f"; {sentence}"


def _charge(session: Session, row: Row, told: str, log: str = "", seconds: float = 0.0) -> None:
    """Write down what ended a check, or the process that ran it, as its failure."""
    seconds = round(seconds, 3)
    session.checks.append(Check(row.name, False, told, seconds=seconds, log=log, level=row.level))


def _same_files(before: dict[str, str]) -> Check:
    """What is certified, and what it was compared with, is what was hashed before anything ran."""
    for path, known in before.items():
        try:
            same = sha256(path) == known
        except OSError:
            same = False
        if not same:
            return Check(FILE, False, f"{path} was changed while it was verified")
    return Check(FILE, True, f"{' and '.join(before)} are what was hashed before anything ran")


def sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
