"""The page of docs/ about the tools that find each broken model, made from measurements."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEADS = {
    "exists": "exists()", "cli_show": "cli show", "cli_run": "cli run", "call": "load, call",
    "session": "session", "modelscan": "modelscan", "mlflow": "MLflow", "ours": "ours",
    "before": "before training", "asked": "rehearse=True",
}  # fmt: skip
GROUPS = (
    ("no SavedModel, or none to serve", "presence parses serve_tag signatures_exist "
     "required_signatures inputs_read"),
    ("damaged or mixed files", "fingerprint variables_read variables_finite assets leftovers loads "
     "manifest_matches golden"),
    ("signatures", "signature_specs batch_dimension output_shape serialized_input "
     "composite_tensors signature_tensors signature_methods label_inputs base_model"),
    ("reaches files or the network", "file_ops"),
    ("tied to this machine, library or code", "python_ops denied_ops unregistered_ops "
     "absolute_paths devices compiled_functions tensorflow_version served_by session"),
    ("predictions: NaN, random, of the wrong row, or none", "scores row_independence deterministic "
     "output_per_row outputs_finite outputs_vary outputs_utf8 state_growth latency memory"),
    ("rows that the first examples do not show, other names and words", "eval_rows schema_rows "
     "observed_rows unforeseen_rows batch_sizes without_label without_optional schema_features "
     "vocabularies"),
    ("warm-up requests", "warmup"),
    ("the Evaluator's config", "eval_config eval_signatures eval_rehearsal"),
)  # fmt: skip
_INTRODUCTION = """\
`python -m benchmarks.broken_models --write`; the recipes are in `tests/validation`.
A source like `serving#992` is an issue of the repository of that name, such as `tensorflow`,
`serving`, `tfx`, `transform`, `model-analysis`, `hub` or `keras`; other sources name the broken
feature. The columns are:

- exists(): the export directory exists, the only requirement of TFX's Trainer.
- cli show: `saved_model_cli show --all` and `scan`; cli run: its `run`, with two rows.
- load, call: `tf.saved_model.load` in a separate process, and one call with two rows.
- session: a graph session loads the model, and answers two rows and its warm-up requests. It
  replaces InfraValidator, because no package registry has TensorFlow Serving.
- modelscan: modelscan 0.8 looks for unsafe ops. MLflow: MLflow 3 loads the SavedModel and predicts
  two rows.
- ours: the check of GenericTrainer that fails or warns. Needs: fields that the contract must have.
- early, before training: the default rehearsal finds the fault if `export_fn` writes the model. It
  fails only for faults that training does not change.
"""


@dataclasses.dataclass
class Row:
    """The findings of all tools in one model.

    Attributes:
        found: tool → its finding; empty for none.
        says: the finding of the validator.
    """

    name: str
    source: str
    breaks: str
    needs: str
    check: str
    missed: str
    found: dict[str, str]
    says: str = ""


def page_of(
    broken: list[Row], good: list[Row], tools: Sequence[str], stacks: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yields the lines of the page.

    Args:
        broken: the broken models.
        good: the good ones.
        tools: the columns between `exists()` and `ours`.
        stacks: measurements of each stack: `stack`, and `models`, name → findings.
    """
    columns = ["exists", *tools, "ours"]
    knowable = [row for row in broken if not row.missed]
    yield "# Broken models and the tools that find them\n"
    yield f"{len(broken)} broken models and {len(good)} good ones, made and measured by"
    yield _INTRODUCTION
    yield "## Totals\n"
    yield _line(["fault", "models", *(HEADS[c] for c in columns), HEADS["before"]])
    yield _line(["---"] * (len(columns) + 3))
    for title, checks in GROUPS:
        rows = [row for row in broken if row.check in checks.split()]
        yield _counted(title, rows, columns)
    yield _counted("**all**", broken, columns)
    refused = [row for row in knowable if row.found["asked"]]
    early = sum(bool(row.found["before"]) for row in refused)
    found = sum(bool(row.found["ours"]) for row in knowable)
    yield (
        f"\n{len(knowable)} of the faults can be known from the files and inputs; GenericTrainer "
        f"finds {found} of these. {len(refused)} are failures, the others warnings.\n"
        f"{early} of these {len(refused)} fail in the rehearsal, before the first training step "
        f"({100 * early // max(len(refused), 1)} %).\n"
    )
    yield "Findings of each tool in the good models, all of them false alarms:\n"
    yield _line(["", "models", *(HEADS[c] for c in columns), ""])
    yield _line(["---"] * (len(columns) + 3))
    yield _counted("good models", good, columns)
    yield "\n## On which stacks this holds\n"
    yield from _by_stack(stacks)
    yield "\n## Faults that no check can find\n"
    for row in broken:
        if row.missed:
            yield f"- {_words(row)} ({row.source}): {row.missed}."
    for title, checks in GROUPS:
        yield f"\n## {title[0].upper()}{title[1:]}\n"
        yield _line(["fault", "source", "breaks", "needs", *(HEADS[c] for c in columns), "early"])
        yield _line(["---"] * (len(columns) + 5))
        for row in broken:
            if row.check in checks.split():
                marks = ["x" if row.found[c] else "" for c in columns[:-1]]
                early = "x" if row.found["before"] else ""
                ours = f"`{row.found['ours']}`" if row.found["ours"] else "**missed**"
                yield _line([_words(row), row.source, row.breaks, row.needs, *marks, ours, early])
    yield "\n## The good models\n"
    yield ", ".join(_words(row) for row in good) + "."
    alarms: Mapping[str, list[str]] = {
        column: [_words(row) for row in good if row.found[column]] for column in columns
    }
    yield "\nFalse alarms:\n"
    for column, names in alarms.items():
        yield f"- {HEADS[column]}: {', '.join(names) or 'none'}."


def _by_stack(stacks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "The findings of GenericTrainer on each stack. With Keras 2 only Keras's own models are"
    yield "measured again, because the others do not depend on Keras.\n"
    yield _line(["stack", "broken, can be known", "found", "good", "refused"])
    yield _line(["---"] * 5)
    for kept in stacks:
        counts: collections.Counter[str] = collections.Counter()
        for known in kept["models"].values():
            counts.update([known["kind"], f"{known['kind']} found" * bool(known["ours"])])
        keys = ("broken", "broken found", "good", "good found")
        yield _line([kept["stack"], *(str(counts[key]) for key in keys)])


def _counted(title: str, rows: list[Row], columns: Sequence[str]) -> str:
    counts: collections.Counter[str] = collections.Counter()
    for row in rows:
        counts.update(column for column, said in row.found.items() if said)
    early = counts["before"]
    return _line([title, str(len(rows)), *(str(counts[c]) for c in columns), str(early)])


def _words(row: Row) -> str:
    return row.name.replace("_", " ")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
