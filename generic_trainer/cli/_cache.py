"""`generic-trainer cache`: what the reader has parsed and keeps for later runs."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from generic_trainer.data import CacheFolder, size_text


def add_cache(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "cache",
        help="list or clear the columns that the reader keeps for later runs",
        description=(
            "Examples that were read once are kept as columns, which later runs of this user map "
            "instead of parsing the files again. GENERIC_TRAINER_CACHE_DIR names the folder, or is "
            "'off'; GENERIC_TRAINER_CACHE_MB is what it may take in megabytes."
        ),
    )
    parser.set_defaults(run=_cache)
    parser.add_argument("--clear", action="store_true", help="delete all of it")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _cache(options: argparse.Namespace) -> int:
    folder = CacheFolder.of_environment()
    if folder is None:
        off = "The column cache is off: GENERIC_TRAINER_CACHE_DIR=off"
        print("[]" if options.json else off)
        return 0
    if options.clear:
        freed = folder.clear()
        as_json = json.dumps({"freed_bytes": freed, "folder": str(folder.path)})
        print(as_json if options.json else f"{size_text(freed)} freed in {folder.path}")
        return 0
    entries = [(info, info.entry()) for info in folder.entries()]
    if options.json:
        listed = [
            {
                "folder": str(info.folder),
                "num_bytes": info.num_bytes,
                "used_s": info.used_s,
                "num_rows": entry and entry.num_rows,
                "files": entry and entry.files,
            }
            for info, entry in entries
        ]
        print(json.dumps(listed, indent=2))
        return 0
    taken = sum(info.num_bytes for info, _ in entries)
    if not entries:
        print(f"{folder.path} is empty")
        return 0
    for info, entry in entries:
        first = f"{entry.files[0]} ({len(entry.files)} file(s))" if entry else "damaged"
        rows = f"{entry.num_rows:,}" if entry else "?"
        print(
            f"{size_text(info.num_bytes):>9}  {rows:>13} examples  "
            f"used {_age_text(info.used_s):>6} ago  {first}"
        )
    limit = size_text(folder.limit_bytes)
    print(f"{size_text(taken):>9}  of at most {limit} in {folder.path}")
    return 0


def _age_text(used_s: float) -> str:
    age_s = max(0.0, time.time() - used_s)
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= factor:
            return f"{age_s / factor:.0f} {unit}"
    return f"{age_s:.0f} s"
