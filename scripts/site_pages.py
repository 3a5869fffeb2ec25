"""Pages that are made: of the site by MkDocs, see mkdocs.yml; and docs/checks.md by `make docs`.

The README is the front page; checks and commands say themselves what they are. A link that leads
out of docs/ gets a copy of what it leads to, so that the site is whole wherever it lies.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from generic_trainer.cli import command_parser
from generic_trainer.validation import all_checks

ROOT = Path(__file__).parent.parent
# File of the repository → page of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
WIDE = {"broken-models.md"}  # its tables take the place of the table of contents
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
SUBJECTS = {  # whose titles say more than the name of their file
    "evaluator": "The Evaluator",
    "graph": "The graph",
    "parity": "Converted and quantised models",
    "probing": "Rows that the first examples do not show",
    "quality": "The quality of the predictions",
    "tflite": "TFLite models",
}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made, and the files of the repository that pages lead to."""
    made = {"command-line.md": command_page()}
    made |= {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for page in files.documentation_pages():
        for link in LINK.findall(page.content_string):
            source = source_of(page.src_uri, link)
            if not source.startswith("docs/") and (ROOT / source).is_file() and source not in PAGES:
                copy = File.generated(
                    config, f"source/{source}.txt", abs_src_path=str(ROOT / source)
                )
                if copy.src_uri not in files.src_uris:
                    files.append(copy)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Has links of the repository lead to pages of the site."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]

    def on_the_site(match: re.Match[str]) -> str:
        source = source_of(page.file.src_uri, match[1])
        target = PAGES.get(source) or source.removeprefix("docs/")
        if f"source/{source}.txt" in files.src_uris:
            target = f"source/{source}.txt"
        return os.path.relpath(target, os.path.dirname(page.file.src_uri))

    return LINK.sub(on_the_site, markdown)


def source_of(page: str, link: str) -> str:
    """Returns the file of the repository that a link on a page of the site leads to."""
    from_root = {made: name for name, made in PAGES.items()}.get(page, f"docs/{page}")
    return os.path.normpath(os.path.join(os.path.dirname(from_root), link))


def checks_page() -> str:
    """Returns the page of all checks, by subject."""
    parts = [
        "# Every check\n",
        "Made by `make docs` from the docstrings of the checks. "
        "Within a subject, checks are listed in the order in which they run. "
        "`generic-trainer explain NAME` prints the same text. Severity may depend on the "
        "[consumers of the model](before-publishing.md#consumers-of-the-model).\n",
    ]
    by_subject: dict[str, list[Any]] = {}
    for check in all_checks():
        by_subject.setdefault(check.function.__module__.rpartition(".")[2], []).append(check)
    for subject, checks in by_subject.items():
        title = SUBJECTS.get(subject, subject.capitalize())
        parts.append(f"## {title}\n")
        for check in checks:
            needs = ", ".join(f"[`{name}`](#{name})" for name in check.needs)
            parts.append(f"### {check.name}\n\n**{check.summary}**\n")
            parts.append(f"{check.explanation}\n\n{check.how_to_silence}\n")
            have = "have" if len(check.needs) > 1 else "has"
            parts += [f"Runs after {needs} {have} passed.\n"] if needs else []
    return "\n".join(parts)


def command_page() -> str:
    """Returns the page of all commands, as their `--help` has it."""
    os.environ["COLUMNS"] = "90"
    parser = command_parser()
    parts = [
        f"# The command line\n\n```\n{parser.format_help()}```\n",
        "With `--json` every command prints JSON as the last output. "
        "[Exit statuses](errors.md#exit-statuses-of-the-command-line).\n",
        "To complete words with the tab key, register the command in your shell:\n\n"
        '```\n$ eval "$(register-python-argcomplete generic-trainer)"             # bash, zsh\n'
        "$ register-python-argcomplete --shell fish generic-trainer | source   # fish\n```\n",
    ]
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        parts.append(f"## {name}\n\n```\n{command.format_help()}```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "checks.md").write_text(checks_page(), encoding="utf-8")
