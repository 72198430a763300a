"""Judges entries that come in as lines, and says so in lines; a crash ends this process alone."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, TextIO

import torch

from databases.cases import LOOKED_AT, Entry, samples
from databases.judge import judged, undefined_of


def serve(device: str, count: int) -> None:
    """One request a line: an entry and how many of its samples are done; one answer a sample."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is not ours to read
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _judge(Entry.parse(request["entry"]), request["done"], device, count, answers)
        except Exception as error:
            _say(answers, error=f"{type(error).__name__}: {error}"[:300])
        _say(answers, finished=True)


def _judge(entry: Entry, done: int, device: str, count: int, answers: TextIO) -> None:
    undefined = undefined_of(entry.name)
    for number, sample in enumerate(samples(entry, device, count or LOOKED_AT)):
        if number < done:
            continue
        _say(answers, sample=number, about=sample.about)
        verdict = judged(sample, number, undefined)
        _say(answers, sample=number, verdict=asdict(verdict))


def _say(answers: TextIO, **what: Any) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()
