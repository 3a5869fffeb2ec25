"""The documents: examples do what they say, links lead somewhere, tables hold what there is."""

import ast
import contextlib
import dataclasses
import doctest
import importlib.util
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import generic_trainer
from generic_trainer import cli
from generic_trainer._core.texts import parse_yaml
from generic_trainer.executors._fn_args import FnArgs
from generic_trainer.launchers import Failure
from generic_trainer.trials._config import parse_experiment
from generic_trainer.validation import ServingContract
from tests.house import ROOT, modules

DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DESIGN = sorted((DOCS / "design").glob("*.md"))
OF_THE_ROOT = ("index", "contributing", "changelog", "security-policy")
MADE = {"command-line.md"}  # by scripts/site_pages.py
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


@dataclasses.dataclass(frozen=True)
class Example:
    """A piece of code in a document or a docstring."""

    place: str
    language: str
    text: str


def examples_of_documents() -> Iterator[Example]:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in FENCED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Example(f"{document.name}:{line}", match[1], match[2])


def examples_of_docstrings() -> Iterator[Example]:
    for module in modules().values():
        for node in module.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                docstring = ast.get_docstring(node) or ""
                for code in re.findall(r"::\n\n((?:(?: .*)?\n)+)", docstring + "\n"):
                    line = node.body[0].lineno
                    language = "" if "generic-trainer " in code else "python"
                    if ("generic_trainer" in code or not language) and "├" not in code:
                        yield Example(f"{module.name}:{line}", language, textwrap.dedent(code))


EXAMPLES = [*examples_of_documents(), *examples_of_docstrings()]
IN_PYTHON = [each for each in EXAMPLES if each.language == "python"]


def test_there_are_examples() -> None:
    assert len([each for each in IN_PYTHON if ">>>" in each.text]) >= 3
    assert len(IN_PYTHON) > 25


# ---- Python --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example", [e for e in IN_PYTHON if ">>>" in e.text], ids=lambda example: example.place
)
def test_what_looks_like_a_session_runs_like_one(example: Example) -> None:
    test = doctest.DocTestParser().get_doctest(example.text, {}, example.place, None, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append)
    assert test.examples and not said, "".join(said)


def test_examples_use_names_and_arguments_that_there_are() -> None:
    wrong = [
        f"{example.place}: {problem}"
        for example in IN_PYTHON
        if ">>>" not in example.text
        for problem in problems_of(example.text)
    ]
    assert wrong == []


def problems_of(code: str) -> Iterator[str]:
    """Yields names of the package that it does not have, and arguments that nothing takes."""
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        yield str(error)
        return
    pytest.importorskip("tfx")  # of which GenericTrainer is a component
    names: dict[str, Any] = {name: getattr(generic_trainer, name) for name in NAMES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("generic_trainer"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if hasattr(module, alias.name):
                    names[alias.asname or alias.name] = getattr(module, alias.name)
                else:
                    yield f"{node.module} has no {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            with contextlib.suppress(LookupError, TypeError, ValueError):
                called = found(names, ast.unparse(node.func))
                taken = inspect.signature(called).parameters
                if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
                    continue
                for keyword in node.keywords:
                    if keyword.arg and keyword.arg not in taken:
                        yield f"{ast.unparse(node.func)} takes no {keyword.arg}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ROOMS:
            room = importlib.import_module(f"generic_trainer.{ast.unparse(node.value)}")
            if not hasattr(room, node.attr):
                yield f"{ast.unparse(node)} is not there"


NAMES = ("Distribution", "GenericTrainer", "ServingContract", "training", "validation")
ROOMS = ("training", "validation")


def found(names: dict[str, Any], path: str) -> Any:
    """Returns what a dotted path leads to; a `LookupError` where the example means its own."""
    first, *rest = path.split(".")
    value = names[first]
    for name in rest:
        if not hasattr(value, name):
            raise LookupError(path)
        value = getattr(value, name)
    return value


# ---- commands and files --------------------------------------------------------------------------


def commands() -> list[tuple[str, list[str]]]:
    """Returns the calls of the command in all documents and docstrings: place, words."""
    return [
        (example.place, shlex.split(line.replace("...", "x"), comments=True))
        for example in EXAMPLES
        for line in re.findall(r"(?m)^\$? *((?:generic-trainer|make) .*)$", example.text)
    ]


def test_commands_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.command_parser()
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    called = commands()
    assert len(called) > 15
    for place, (program, *words) in called:
        if program == "make":
            assert words[0] in targets, place
            continue
        try:
            parser.parse_args(words)
        except SystemExit as ended:
            assert not ended.code, f"{place}: {words}: {capsys.readouterr().err}"


def test_files_in_yaml_can_be_read(tmp_path: Path) -> None:
    read = set()
    for example in EXAMPLES:
        if example.language == "yaml" and (name := re.match(r"# (\w+)\.yaml\n", example.text)):
            read.add(name[1])
            if name[1] == "contract":
                (tmp_path / "contract.yaml").write_text(example.text, encoding="utf-8")
                ServingContract.from_yaml(tmp_path / "contract.yaml")
            else:
                parse_experiment(parse_yaml(example.text))
    assert read == {"contract", "const"}


# ---- links and tables ----------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(FENCED.sub("", document.read_text(encoding="utf-8"))):
        path = (document.parent / target).resolve() if target else document
        if path.parent == DOCS and path.name in MADE:
            continue  # the site is checked by `make docs`
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def anchors(document: Path) -> set[str]:
    """Returns what the headings of a document are called in links, on GitHub and on the site."""
    headings = re.findall(r"(?m)^#+ (.+)$", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def test_every_document_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    written = {path.name for path in DOCS.rglob("*.md")}
    assert listed == written | MADE | {f"{name}.md" for name in OF_THE_ROOT}


@pytest.mark.parametrize("page", DESIGN, ids=lambda path: path.name)
def test_modules_that_a_design_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text))
    named.remove("generic_trainer/")  # of which all others are parts
    package = ROOT / "generic_trainer"
    assert named and {name for name in named if not (package / name).exists()} == set()
    assert page.with_suffix(".svg").name in text


def test_the_page_of_the_checks_is_fresh() -> None:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    page = (DOCS / "checks.md").read_text(encoding="utf-8")
    assert page == pages.checks_page(), "run `make docs`"


def test_every_field_of_fn_args_is_told() -> None:
    page = (DOCS / "module-file.md").read_text(encoding="utf-8")
    fields = {*FnArgs.__slots__, *(field.name for field in FnArgs.__attrs_attrs__)}
    assert {name for name in fields if f"`{name}`" not in page} == set()


def test_every_exit_status_is_told() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    told = {int(n) for row in re.findall(r"(?m)^\| ([\d, ]+) \|", page) for n in row.split(",")}
    assert {failure.exit_code for failure in Failure} <= told
