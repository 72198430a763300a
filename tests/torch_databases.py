"""Sweeps torch's own databases of modules and operators; see databases/.

python tests/torch_databases.py --out found.jsonl            all of both databases
python tests/torch_databases.py --kind module --only BatchNorm
python tests/torch_databases.py --tenth 7                    a tenth, by that seed
python tests/torch_databases.py --out found.jsonl --resume   what is not in the file yet
python tests/torch_databases.py --table docs/torch_databases.md --out found.jsonl
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

import torch  # noqa: E402
from databases import cases, table  # noqa: E402
from databases.cases import Entry  # noqa: E402
from databases.sweep import Record, sweep  # noqa: E402
from drawn import chance  # noqa: E402


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["module", "op"], action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", action="append", help="a part of the name of an entry")
    parser.add_argument("--shard", default="0/1", help="one part of so many, as 3/40")
    parser.add_argument("--tenth", help="a tenth of them, by this seed")
    parser.add_argument(
        "--samples", type=int, default=0, help="of each entry, at most; 0: all that differ"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="results as JSON lines")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has")
    parser.add_argument("--table", type=Path, help="write the table of the results in --out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Entry]:
    found = [e for k in options.kind or ["module", "op"] for e in cases.entries(k, options.device)]
    number, of = map(int, options.shard.split("/"))
    found = cases.part(found, number, of)
    if options.only:
        found = [e for e in found if any(part in str(e) for part in options.only)]
    if options.tenth is not None:
        found = [e for e in found if chance(options.tenth, str(e)) < 0.1]
    if options.resume and options.out and options.out.exists():
        done = {json.loads(line)["entry"] for line in options.out.read_text().splitlines()}
        found = [e for e in found if str(e) not in done]
    return found


def about(device: str) -> str:
    """On what the results were found."""
    place = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return f"These are the results of torch {torch.__version__} on {device} ({place})."


def main() -> int:
    options = parsed()
    if options.worker:
        from databases.worker import serve

        serve(options.device, options.samples)
        return 0
    if options.table:
        records = [json.loads(line) for line in options.out.read_text().splitlines()]
        options.table.write_text(table.document(records, about(options.device)))
        return 0
    counts: Counter[str] = Counter()
    out = options.out.open("a" if options.resume else "w") if options.out else None

    def heard(record: Record) -> None:
        if out:
            out.write(json.dumps(record) + "\n")
            out.flush()
        if "verdict" not in record:
            return
        verdict = record["verdict"]
        counts[verdict["outcome"]] += 1
        if verdict["outcome"] in ("wrong", "crashed"):
            about = f"{record['entry']} sample {record['sample']} ({record['about']})"
            print(f"{verdict['outcome'].upper()} {about}: {verdict['why'][:400]}", flush=True)

    entries = chosen(options)
    worker = ["--device", options.device, "--samples", str(options.samples)]
    sweep(entries, options.jobs, worker, heard)
    print(f"{len(entries)} entries: {dict(counts)}")
    return 1 if counts["wrong"] or counts["crashed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
