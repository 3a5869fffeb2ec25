"""The examples of a run without a pipeline: TFRecords of splits, or CSV files."""

import argparse
import glob
import os

from generic_trainer import errors
from generic_trainer._core.files import absolute_pattern, gfile, is_remote
from generic_trainer.cli._csv import SUFFIX, Table, write_examples

_SPLIT = "Split-"
_DRY_EXAMPLES = 10


def add_examples_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name the examples, and those of the steps that read them."""
    parser.add_argument(
        "--examples",
        metavar="DIR",
        help="output of an ExampleGen or Transform: Split-*/; or a .csv file, of which a third of "
        "the rows is for evaluation, chosen by a hash of the row as in CsvExampleGen",
    )
    parser.add_argument(
        "--train", metavar="GLOB", help="TFRecords of tf.Examples to train on, or a .csv file"
    )
    parser.add_argument(
        "--eval", metavar="GLOB", help="TFRecords of tf.Examples to evaluate on, or a .csv file"
    )
    parser.add_argument(
        "--train-steps", metavar="N", type=int, help="fn_args.train_steps; default: one pass"
    )
    parser.add_argument(
        "--eval-steps", metavar="N", type=int, help="fn_args.eval_steps; default: one pass"
    )


def written_examples(
    options: argparse.Namespace, table: Table | None, folder: str
) -> dict[str, tuple[str, ...]]:
    """Returns split → file patterns, of new files for CSV files and for a dry run."""
    if table is not None:
        return write_examples(table, folder, _DRY_EXAMPLES if options.dry_run else None)
    splits = splits_of(options)
    if not options.dry_run:
        return splits
    return {
        split: (_copy_records(pattern, os.path.join(folder, split), _DRY_EXAMPLES),)
        for split, (pattern,) in splits.items()
    }


def _copy_records(source: str, folder: str, count: int) -> str:
    """Writes the first records of TFRecord files into one with the name of the first of them.

    Args:
        source: a glob, whose files may be compressed; the copy is compressed if its name ends so.
        folder: the target; it is created.
        count: the number of records.

    Returns:
        The path of the copy.

    Raises:
        DataError: no file matches, or one is not a TFRecord file.
    """
    import tensorflow as tf

    from generic_trainer._core.records import read_records

    records = read_records(source, count)
    first = min(path for path in gfile().glob(source) if not gfile().isdir(path))
    path = f"{folder}/{first.rpartition('/')[2]}"
    gfile().makedirs(folder)
    with tf.io.TFRecordWriter(path, "GZIP" if path.endswith(".gz") else "") as writer:
        for record in records:
            writer.write(record)
    return path


def csv_files_of(options: argparse.Namespace) -> dict[str, str]:
    """Returns split → CSV file, `""` for one that holds both; {} if the examples are TFRecords."""
    given = {"": options.examples, "train": options.train, "eval": options.eval}
    files = {split: path for split, path in given.items() if path}
    csv_files = [path for path in files.values() if path.endswith(SUFFIX)]
    if csv_files and len(csv_files) < len(files):
        raise errors.ConfigurationError(
            f"{options.named('train')} and {options.named('eval')}: expected both to be {SUFFIX} "
            f"files, which are not packed, or neither; found {' and '.join(files.values())}"
        )
    for path in csv_files:
        if not os.path.exists(path) and (matches := [] if is_remote(path) else glob.glob(path)):
            raise errors.ConfigurationError(
                f"{path} is a pattern of files, {len(matches)} in number: expected one {SUFFIX} "
                "file for each split. Join those of a split, or write them as TFRecords of "
                "tf.Examples.",
                path=path,
            )
    return files if csv_files else {}


def splits_of(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Returns split → file patterns, of which each matches a file; {} without examples."""
    splits: dict[str, tuple[str, ...]]
    if not (options.examples or options.train):
        return {}
    if options.examples:
        if os.path.isfile(options.examples):
            raise errors.ConfigurationError(
                f"{options.named('examples')}: {options.examples} is a file whose name does not "
                f"end in {SUFFIX}: expected a directory with {_SPLIT}train and {_SPLIT}eval, or a "
                f"{SUFFIX} file, not packed",
                path=options.examples,
            )
        folders = _matching(os.path.join(_pattern(options.examples), f"{_SPLIT}*"))
        splits = {
            os.path.basename(folder).removeprefix(_SPLIT): (os.path.join(_pattern(folder), "*"),)
            for folder in folders
        }
        if missing := [f"{_SPLIT}{name}" for name in ("train", "eval") if name not in splits]:
            raise errors.ConfigurationError(
                f"{options.named('examples')}: {options.examples} has no "
                f"{' and no '.join(missing)}; found {sorted(splits) or 'no splits'}. Name the "
                f"files with {options.named('train')} and {options.named('eval')}.",
                path=options.examples,
            )
    else:
        splits = {"train": (_pattern(options.train),), "eval": (_pattern(options.eval),)}
    empty = [pattern for (pattern,) in splits.values() if not _matching(pattern)]
    if empty:
        raise errors.ConfigurationError(f"no file matches {', '.join(empty)}")
    return splits


def _pattern(path: str) -> str:
    """Returns the absolute path as a pattern; brackets in an existing one stand for themselves."""
    return absolute_pattern(glob.escape(path) if os.path.exists(path) else path)


def _matching(pattern: str) -> list[str]:
    return gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern)
