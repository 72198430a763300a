"""The command `kernelwright`: from its first import on, Ctrl-C and SIGTERM end it in one line."""

import sys

from kernelwright import interrupts


def main() -> int:
    interrupts.watch()
    try:
        from kernelwright.cli import main as run

        return run()
    except BaseException as error:
        if isinstance(error, SystemExit) or not interrupts.pressed():
            raise
        print(f"kernelwright: {interrupts.told()}", file=sys.stderr)
        return interrupts.code()
    finally:
        interrupts.unwatch()


if __name__ == "__main__":
    sys.exit(main())
