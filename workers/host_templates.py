"""The launch templates of this host: YAML files, the built-in ones and the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from autotune.documents import file_text, read_value
from autotune.domain.template import LaunchTemplate
from autotune.errors import InvalidRequest, InvalidTemplate, NotFound, Problem

BUILT_IN = Path(__file__).with_name("templates")
PACKAGE_SCHEME = "package:"


class HostTemplates:
    """Reads the folders anew each time: an engineer edits a template while the service runs.

    A user's template may not take the name of a built-in one: a study that names it would silently mean
    something else on each host.
    """

    def __init__(self, user_folder: Path | None = None, built_in: Path = BUILT_IN) -> None:
        self._folders = [built_in, *([user_folder] if user_folder is not None else [])]

    def names(self) -> Sequence[str]:
        """Sorted. A template is found by its file's name, so that a broken file hides no other one."""
        return sorted({path.stem for path in self._files()})

    def template(self, name: str) -> LaunchTemplate:
        """Raises NotFound with the known names, InvalidTemplate with every problem of the file."""
        found = [path for path in self._files() if path.stem == name]
        if not found:
            raise NotFound(f"there is no launch template {name!r} on this host; known: {', '.join(self.names())}")
        if len(found) > 1:
            raise _invalid(found[1], Problem(key="name", message=f"{name!r} exists already", mend="rename the file"))
        return read_template(found[0])

    def _files(self) -> Iterator[Path]:
        for folder in self._folders:
            if folder.is_dir():
                yield from sorted(p for p in folder.iterdir() if p.suffix in {".yaml", ".yml"})


def read_template(path: Path) -> LaunchTemplate:
    """One file. Raises InvalidTemplate with every problem, each with its line."""
    try:
        text = file_text(path)
    except InvalidRequest as error:
        raise InvalidTemplate(error.message, error.problems) from error
    template = read_value(LaunchTemplate, text, path.name, InvalidTemplate)
    if template.name != path.stem:
        problem = Problem(key="name", message=f"is {template.name!r}", mend=f"call it {path.stem!r}, as its file")
        raise _invalid(path, problem)
    return template


def model_path(template: LaunchTemplate, model: str) -> str:
    """Where the model lies on this host. Raises NotFound for a model that the template does not list.

    A path need not exist: an engine may take a repository's name for it, and simulated models are only names.
    """
    if model not in template.models:
        known = ", ".join(sorted(template.models))
        raise NotFound(f"template {template.name} has no model {model!r}; known: {known}")
    path = template.models[model]
    return str(_in_package(path)) if path.startswith(PACKAGE_SCHEME) else path


def library_path(template: LaunchTemplate, library: str) -> Path:
    """The library's absolute path as the server sees it.

    Raises InvalidTemplate when it is not there: `ld.so` would only warn. What lies in an image is not looked at.
    """
    text = template.libraries[library]
    path = _in_package(text) if text.startswith(PACKAGE_SCHEME) else Path(text)
    looked_at: Path | None = path
    if template.container is not None:
        of_host = template.container.of_host(text)
        looked_at = None if of_host is None else Path(of_host)
    if not path.is_absolute() or (looked_at and not looked_at.is_file()) or any(c in str(path) for c in ": \n"):
        problem = Problem(key=f"libraries.{library}", message=f"{path} is no file with a usable absolute path")
        raise InvalidTemplate(f"template {template.name}: library {library} cannot be loaded", [problem])
    return path


def _in_package(text: str) -> Path:
    """`package:ray/core/libjemalloc.so`: a file below an installed top-level package."""
    package, _, inside = text.removeprefix(PACKAGE_SCHEME).partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    roots = list(spec.submodule_search_locations or []) if spec else []
    for root in roots:
        path = (Path(root) / inside).resolve()
        if path.is_relative_to(Path(root).resolve()) and path.exists():
            return path
    problem = Problem(key="package", message=f"no installed package holds {text!r}")
    raise InvalidTemplate(f"{text} cannot be found on this host", [problem])


def _invalid(path: Path, problem: Problem) -> InvalidTemplate:
    placed = Problem(key=problem.key, message=problem.message, mend=problem.mend, line=problem.line, file=path.name)
    return InvalidTemplate(f"{path.name} is no launch template", [placed])
