"""One process as the judge sees it: questions with an end, and answers that are only data.

In: a Starter and what to load. Out: answers; what the module raised, as Raised; what happened to
the process, as Broken, with its last words.
"""

from __future__ import annotations

import math
from typing import Any

from kernelwright.errors import BuildError, InputError, KernelwrightError, VerificationError
from kernelwright.verify.answers import is_answer
from kernelwright.verify.channel import Silent
from kernelwright.verify.processes import Ended, Process, Starter, printable
from kernelwright.verify.seat import CANDIDATE
from kernelwright.verify.sent import Sent
from kernelwright.verify.surroundings import Surroundings
from kernelwright.verify.wire import Garbled

MESSAGE = 160  # characters of an exception that a finding quotes
KINDS: dict[str, type[KernelwrightError]] = {
    kind.__name__: kind for kind in (InputError, BuildError, VerificationError)
}


class Raised(Exception):
    """What user code raised in its process; prints as kind and first line."""

    def __init__(self, kind: str, message: str, unreplayable: bool = False) -> None:
        lines = printable(message).strip().splitlines()
        super().__init__(f"{kind}: {lines[0] if lines else ''}"[:MESSAGE])
        self.unreplayable = unreplayable


class Broken(Exception):
    """A process that gave no answer, and why; `log` is the end of what it printed.

    One that was `silent` would not have ended by itself.
    """

    def __init__(self, what: str, log: str, silent: bool = False) -> None:
        super().__init__(what)
        self.log, self.silent = log, silent


class Side:
    """The process of the reference or of the candidate, started when it is first asked."""

    def __init__(
        self,
        server: Starter,
        role: str,
        name: str,
        sent: Sent,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.server, self.role, self.name, self.sent = server, role, name, sent
        self.surroundings = surroundings
        self.process: Process | None = None
        self.patience = math.inf
        self.deadline = float("inf")
        self.asked: dict[str, Any] = {}

    def start(self) -> None:
        self.close()
        self.process = self.server.fork(self.role != CANDIDATE, self.surroundings)

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """The answer to a request."""
        self.tell(do, **fields)
        return self.hear()

    def tell(self, do: str, **fields: Any) -> None:
        """A request; its answer must be heard before the next one."""
        assert self.process is not None
        self.asked = {"do": do, **fields}
        try:
            self.process.tell(self.asked, self.sent)
        except Ended as error:
            self._break(str(error).removeprefix("the process "))

    def hear(self) -> dict[str, Any]:
        """The answer to the last request, checked to be one."""
        assert self.process is not None
        try:
            answer = self.process.hear(self.deadline, self.patience)
            if self.role == CANDIDATE and not is_answer(self.asked, answer):
                raise Garbled(f"no answer to {self.asked['do']}")
            return self._heard(answer)
        except Silent:
            self._break("gave no answer in the time that it had", silent=True)
        except Ended as error:
            self._break(str(error).removeprefix("the process "))
        except Garbled as error:
            self._break(f"garbled its answer ({printable(str(error))})")
        raise AssertionError("not reached")

    def _heard(self, answer: dict[str, Any]) -> dict[str, Any]:
        message = printable(str(answer.get("message", "")))
        if (fatal := answer.get("fatal")) in KINDS:
            raise KINDS[fatal](message)
        if fatal is not None:
            raise InputError(message)
        if "raised" not in answer:
            return answer
        if self.role == CANDIDATE and isinstance(reason := answer.get("build"), str):
            raise BuildError(f"{self.name} could not be built: {printable(reason)}")
        kind = printable(str(answer["raised"]))
        raise Raised(kind, message, answer.get("unreplayable") is True)

    def _break(self, what: str, silent: bool = False) -> None:
        assert self.process is not None
        process, self.process = self.process, None
        log = process.output.last_words()
        process.end()
        raise Broken(f"the {self.role}'s process {what}", log, silent)

    @property
    def running(self) -> bool:
        return self.process is not None

    def close(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None
