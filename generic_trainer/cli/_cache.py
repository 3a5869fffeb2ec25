"""`generic-trainer cache`: lists and clears the reader's columns of earlier runs."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from generic_trainer.cli._options import add_command
from generic_trainer.data import CacheFolder, size_text


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    add_command(commands, _cache)


def _cache(options: argparse.Namespace) -> int:
    """List or clear the reader's columns of earlier runs.

    The reader keeps examples as columns; later runs of this user map them instead of parsing the
    files again. GENERIC_TRAINER_CACHE_DIR is the folder, or 'off'; GENERIC_TRAINER_CACHE_MB is its
    maximal size in megabytes.

    Options:
        --clear: delete all of it
        --json: print it as JSON
    """
    folder = CacheFolder.of_environment()
    if folder is None:
        print("[]" if options.json else "The column cache is off: GENERIC_TRAINER_CACHE_DIR=off")
        return 0
    if options.clear:
        freed = folder.clear()
        as_json = json.dumps({"freed_bytes": freed, "folder": str(folder.path)})
        print(as_json if options.json else f"freed {size_text(freed)} in {folder.path}")
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
    if not entries:
        print(f"{folder.path} is empty")
        return 0
    for info, entry in entries:
        first = f"{entry.files[0]} ({len(entry.files)} file(s))" if entry else "damaged"
        rows = f"{entry.num_rows:,}" if entry else "?"
        print(
            f"{size_text(info.num_bytes):>9}  {rows:>13} examples  "
            f"last used {time.strftime('%Y-%m-%d %H:%M', time.localtime(info.used_s))}  {first}"
        )
    taken, limit = sum(info.num_bytes for info, _ in entries), size_text(folder.limit_bytes)
    print(f"{size_text(taken):>9}  of at most {limit} in {folder.path}")
    return 0
