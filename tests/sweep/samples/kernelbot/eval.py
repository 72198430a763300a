"""An evaluator that keeps KernelBot's contract of files, modes, lines and exit codes.

    POPCORN_FD=3 eval.py test|benchmark CASES

Each line of CASES is `name: value; name: value`. Lines `key: value` go to the descriptor, times in
nanoseconds; the exit code is 0 if all passed, 112 if not.
"""

import math
import os
import statistics
import sys
import time

import torch
from reference import check_implementation, generate_input
from submission import custom_kernel
from utils import set_seed


def cases_of(path):
    with open(path) as file:
        for line in file:
            pairs = (pair.split(":") for pair in line.strip().split(";"))
            yield line.strip(), {name.strip(): int(value) for name, value in pairs}


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def tested(say, number, case):
    data = generate_input(**case)
    error = check_implementation(data, custom_kernel(data))
    say(f"test.{number}.status", "fail" if error else "pass")
    if error:
        say(f"test.{number}.error", error)
    return not error


def timed(say, number, case):
    data = generate_input(**case)
    if error := check_implementation(data, custom_kernel(data)):
        say(f"benchmark.{number}.error", error)
        return False
    times = []
    while len(times) < 100:
        wait()
        start = time.perf_counter_ns()
        custom_kernel(data)
        wait()
        times.append(time.perf_counter_ns() - start)
        if len(times) > 2 and doubt(times) < 0.01 * statistics.mean(times):
            break
    figures = {"runs": len(times), "mean": statistics.mean(times), "std": statistics.stdev(times)}
    figures |= {"err": doubt(times), "best": min(times), "worst": max(times)}
    for name, value in figures.items():
        say(f"benchmark.{number}.{name}", value)
    return True


def doubt(times):
    return statistics.stdev(times) / math.sqrt(len(times))


def main():
    if "POPCORN_FD" not in os.environ:
        return 111
    mode, cases = sys.argv[1], list(cases_of(sys.argv[2]))
    set_seed(int(os.environ.get("POPCORN_SEED", "42")))
    with os.fdopen(int(os.environ["POPCORN_FD"]), "w") as out:

        def say(key, value):
            print(f"{key}: {value}", file=out, flush=True)

        say(f"{mode}-count", len(cases))
        passed = True
        for number, (spec, case) in enumerate(cases):
            say(f"{mode}.{number}.spec", spec)
            passed = (tested if mode == "test" else timed)(say, number, case) and passed
        say("check", "pass" if passed else "fail")
    return 0 if passed else 112


if __name__ == "__main__":
    sys.exit(main())
