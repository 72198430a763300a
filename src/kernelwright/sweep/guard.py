"""Between the driver and a task: one small process that bounds what runs below it.

In: a line of JSON on the standard input (command, environment, folder, limits). Out: a line of JSON
on the standard output that says how it ended. This file runs by itself, in an interpreter without
the package. Its parent's end is that of its input, and whatever the task started, also what has
left its group and its parents, ends with it. `wait` and `go` on the descriptor of words stop and
start the clock: a task that waits for a device does not use up its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_SECONDS, DISK_SECONDS, ENDING_SECONDS = 0.1, 0.5, 5.0
LEAST_FREE = 256 << 20  # of the disk that the folder is on
WAIT, GO = "wait", "go"


class Watch:
    """What a task has taken so far, and what it was stopped for."""

    def __init__(self, spec):
        self.limits, self.folder = spec["limits"], spec["folder"]
        self.why, self.stage, self.waiting = "", "", False
        self.used, self.peak, self.wrote = 0.0, 0, 0
        self._last = self._looked = time.monotonic()

    def look(self):
        now = time.monotonic()
        if not self.waiting:
            # A process that was stopped and goes on has not used the time in between.
            self.used += min(now - self._last, 2.0)
        self._last = now
        below = descendants(os.getpid())
        taken = sum(memory(pid) for pid in below)
        self.peak = max(self.peak, taken)
        if self.used > self.limits["seconds"]:
            self.why = "hung"
        elif len(below) > self.limits["processes"]:
            self.why = "processes"
        elif taken > self.limits["memory"]:
            self.why = "memory"
        elif now - self._looked > DISK_SECONDS:
            self._looked = now
            self.wrote = written(self.folder)
            free = os.statvfs(self.folder)
            if self.wrote > self.limits["disk"] or free.f_bavail * free.f_frsize < LEAST_FREE:
                self.why = "disk"

    def hear(self, words):
        for word in words.split("\n"):
            if word == WAIT:
                self.waiting = True
            elif word == GO:
                self.waiting = False
            elif word:
                self.stage = word[:200]


def main():
    spec = json.loads(sys.stdin.buffer.readline())
    control(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the driver's end is heard on the input
    heard, said = os.pipe()
    os.set_blocking(heard, False)
    watch = Watch(spec)
    with open(os.path.join(spec["folder"], "log"), "wb") as log:
        process = subprocess.Popen(
            [*spec["command"], str(said)],
            env=spec["environment"],
            cwd=spec["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[said],
            start_new_session=True,
            preexec_fn=lambda: bounded(watch.limits),
        )
    os.close(said)
    alive = followed(process, watch, heard)
    end_all(process)
    if alive:
        found = {name: getattr(watch, name) for name in ("why", "stage", "used", "peak", "wrote")}
        below = resource.getrusage(resource.RUSAGE_CHILDREN)
        found["cpu"] = round(below.ru_utime + below.ru_stime, 3)
        print(json.dumps({**found, "code": process.returncode}), flush=True)


def followed(process, watch, heard):
    """Until the task has ended, is to be ended, or nobody waits for it any more."""
    sources = [sys.stdin.fileno(), heard]
    while process.poll() is None and not watch.why:
        ready, _, _ = select.select(sources, [], [], LOOK_SECONDS)
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
            return False
        if heard in ready:
            words = os.read(heard, 4096)
            watch.hear(words.decode(errors="replace"))
            if not words:
                sources.remove(heard)
        watch.look()
    with contextlib.suppress(OSError):
        watch.hear(os.read(heard, 4096).decode(errors="replace"))
    return True


def bounded(limits):
    """In the child, before it is the task: no core files, no huge file, the first to go."""
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["disk"], limits["disk"]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def end_all(process):
    """Nothing of the task stays behind, wherever it went."""
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        below = descendants(os.getpid())
        if not below:
            break
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_SECONDS)


def descendants(root):
    """All processes below one that have not ended."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    below = [int(child) for child in file.read().split()]
                found += [child for child in below if running(child)]
                todo += below
    return found


def running(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def memory(pid):
    """Resident bytes of its own: not those of libraries and of files that it shares."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def written(folder):
    total, todo = 0, [folder]
    while todo:
        with contextlib.suppress(OSError):
            for entry in os.scandir(todo.pop()):
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def control(option, value):
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
