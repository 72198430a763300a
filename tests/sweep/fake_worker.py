"""A worker that runs nothing: a problem's first line says what becomes of its task.

    # fake: pass 1.5         certified, 1.5 times as fast as eager
    # fake: slow 0.5 1.5     the same, half a second later
    # fake: wrong            refuted
    # fake: hang, eat, fill, group, guard, fork, stay, shut, exit 3, half

Started by the guard as the real one is: with the task's folder and the descriptor of its words.
Every start is noted in the file that FAKE_LOG names.
"""

import json
import os
import signal
import sys
import time

MB = 1 << 20


def main():
    folder, words = sys.argv[1], int(sys.argv[2])
    with open(os.path.join(folder, "task.json")) as file:
        task = json.load(file)
    problem = task["problem"]
    note(f"{problem['name']} {task['candidate']}".strip())
    directive = problem["files"][problem["main"]].splitlines()[0].removeprefix("# fake: ").split()
    os.write(words, b"pretending\n")
    globals()[f"do_{directive[0]}"](folder, words, *directive[1:])


def note(line):
    if path := os.environ.get("FAKE_LOG"):
        with open(path, "a") as file:
            file.write(f"{line} {os.getpid()}\n")


def result(folder, **found):
    path = os.path.join(folder, "result.json")
    with open(path + ".new", "w") as file:
        json.dump(found, file)
    os.replace(path + ".new", path)


def do_pass(folder, words, speedup="1.0"):
    ms = {"eager": float(speedup), "candidate": 1.0}
    os.makedirs(os.path.join(folder, "kept"), exist_ok=True)
    with open(os.path.join(folder, "kept", "model_new.py"), "w") as file:
        file.write("# made\n")
    result(folder, status="passed", reason="", speedup=float(speedup), ms=ms)


def do_slow(folder, words, seconds, speedup="1.0"):
    time.sleep(float(seconds))
    do_pass(folder, words, speedup)


def do_wrong(folder, words):
    result(folder, status="wrong", reason="oracle: 3 | of <b>4</b> values differ")


def do_hang(folder, words):
    time.sleep(3600)


def do_half(folder, words):
    """A certificate is there already when it hangs."""
    result(folder, verdict="PASSED: 3 checks", certified=True)
    time.sleep(3600)


def do_waits(folder, words, seconds):
    """For a device, which is no time of its own."""
    os.write(words, b"wait\n")
    time.sleep(float(seconds))
    os.write(words, b"go\n")
    do_pass(folder, words)


def do_eat(folder, words):
    held = []
    while True:
        held.append(bytearray(os.urandom(1024)) * 1024 * 16)
        time.sleep(0.01)


def do_fill(folder, words):
    for number in range(10_000):
        with open(os.path.join(os.environ["TMPDIR"], str(number)), "wb") as file:
            file.write(os.urandom(4 * MB))


def do_large(folder, words):
    """One file beyond the bound: the write itself fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    with open(os.path.join(os.environ["TMPDIR"], "large"), "wb") as file:
        file.seek(1 << 40)
        file.write(b"x")


def do_group(folder, words):
    os.killpg(0, signal.SIGKILL)


def do_guard(folder, words):
    stayer(folder)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def do_fork(folder, words):
    while True:
        if os.fork() == 0:
            time.sleep(3600)
        time.sleep(0.005)


def do_stay(folder, words):
    """What leaves its group and its parent behind."""
    stayer(folder)
    do_pass(folder, words)


def stayer(folder):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("stayer")
            time.sleep(3600)
        os._exit(0)
    time.sleep(0.2)


def do_shut(folder, words):
    """A folder that nobody may look into."""
    inner = os.path.join(os.environ["TMPDIR"], "inner", "most")
    os.makedirs(inner)
    os.chmod(os.path.dirname(inner), 0)
    do_pass(folder, words)


def do_exit(folder, words, code):
    print("last words", flush=True)
    os._exit(int(code))


main()
