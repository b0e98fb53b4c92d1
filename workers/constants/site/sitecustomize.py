"""Sets constants of modules as a Python process imports them.

The worker puts this folder first on a server's PYTHONPATH, so that `site` runs this file in each of the server's
Python processes, whatever environment they belong to: standard library only, Python 3.9 and later.
AUTOTUNE_CONSTANTS holds `{"package.module:NAME": value, ...}`. Right after a named module has run, the constant
is replaced: whoever reads it later, by `from module import NAME` or as `module.NAME`, finds the new value. What
the module computed from the old value while it was imported stays as it is.

On stderr `autotune: set package.module:NAME from 96 to 1` proves each change. A constant that does not exist, or
that is of another type, ends the import with an ImportError that begins `autotune: constant`. A `sitecustomize`
that lies further down the path runs as it would without this one.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

VARIABLE = "AUTOTUNE_CONSTANTS"
LONGEST_SHOWN = 60


class Constants:
    """Finds the modules that are named and has their constants set; all other imports pass by.

    `wanted` maps a module to its constants, `below` a package to the modules in it that lead to one.
    """

    def __init__(self, constants: dict[str, Any]) -> None:
        self.wanted: dict[str, dict[str, Any]] = {}
        self.below: dict[str, set[str]] = {}
        for target, value in constants.items():
            module, _, name = target.partition(":")
            self.wanted.setdefault(module, {})[name] = value
            while "." in module:
                package = module.rpartition(".")[0]
                self.below.setdefault(package, set()).add(module)
                module = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.wanted and fullname not in self.below:
            return None
        spec = self._ordinary_spec(fullname, path, target)
        if spec is None:
            return None
        if spec.loader is not None:
            loader: Any = _Loader(spec.loader, self)
            spec.loader = loader
        elif fullname in self.wanted:  # a folder without code
            self._refuse_all(fullname)
        return spec

    def apply(self, module: ModuleType) -> None:
        """Set what is wanted of a module that has just run; ImportError where that can't be."""
        package = module.__name__
        for name, value in self.wanted.get(package, {}).items():
            target = f"{package}:{name}"
            found = vars(module)
            if name not in found:
                _refuse(f"{target} does not exist", package)
            old = found[name]
            try:
                new = _like(old, value)
            except TypeError as error:
                _refuse(f"{target} {error}", package)
            setattr(module, name, new)
            _say(f"set {target} from {_shown(old)} to {_shown(new)}")
        for inner in sorted(self.below.get(package, ())):
            # No later import would tell that it is missing: nobody imports what is not there.
            path = vars(module).get("__path__")
            if inner not in sys.modules and (path is None or self._ordinary_spec(inner, path, None) is None):
                self._refuse_all(inner)

    def refuse_late(self) -> None:
        """A module that was imported before us may have given its constant away."""
        for module in sorted(self.wanted.keys() & sys.modules.keys()):
            for name in self.wanted[module]:
                _refuse(f"{module}:{name} cannot be set: its module is imported before `site` is done", module)

    def _refuse_all(self, module: str) -> NoReturn:
        leading = [m for m in sorted(self.wanted) if m == module or m.startswith(module + ".")]
        _refuse(f"{leading[0]}:{next(iter(self.wanted[leading[0]]))} does not exist", module)

    def _ordinary_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


class _Loader:
    """The module's own loader, and the constants after it. The module itself keeps its own loader only."""

    def __init__(self, loader: Any, constants: Constants) -> None:
        self._loader = loader
        self._constants = constants

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._constants.apply(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _like(old: Any, value: Any) -> Any:
    """The JSON value as one of the old value's type; TypeError where it is none."""
    if isinstance(value, list):
        if not isinstance(old, (list, tuple, set, frozenset)) and old is not None:
            raise TypeError(f"is {_kind(old)}, not a list")
        items = [_item(old or (), item) for item in value]
        return tuple(items) if old is None else type(old)(items)
    return value if old is None else _scalar(old, value)


def _item(others: Any, item: Any) -> Any:
    """An item as one of the type of the items that there are."""
    problem = None
    for other in others:
        try:
            return _scalar(other, item)
        except TypeError as error:
            problem = error
    if problem is not None:
        raise TypeError(f"holds what {problem}")
    return item


def _scalar(old: Any, value: Any) -> Any:
    if type(old) is float and type(value) is int:
        return float(value)
    if type(old) is not type(value):
        raise TypeError(f"is {_kind(old)}, not {_kind(value)} ({_shown(value)})")
    return value


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def _say(text: str) -> None:
    """One write, past every buffer: processes share the log, and sys.stderr may be replaced or closed."""
    try:
        os.write(2, f"autotune: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return


def _refuse(text: str, module: str) -> NoReturn:
    """Said at once as well, since engines swallow import errors of optional parts."""
    _say(f"constant {text}")
    raise ImportError(f"autotune: constant {text}", name=module)


def _run_next(folder: str) -> None:
    """The `sitecustomize` that this one hides; it takes our place in sys.modules."""
    others = [entry for entry in sys.path if os.path.realpath(entry) != folder]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def install(text: str) -> None:
    """From now on the constants of this text are set. A process where that is impossible ends with code 1.

    `site` would only report an exception, and the process would go on with the old values.
    """
    try:
        constants = Constants(json.loads(text))
        constants.refuse_late()
    except ImportError:
        os._exit(1)
    except (ValueError, AttributeError):
        _say(f"constants cannot be read: {VARIABLE}={_shown(text)}")
        os._exit(1)
    sys.meta_path.insert(0, constants)


if __name__ == "sitecustomize":  # a test may import this file under another name
    if VARIABLE in os.environ:
        install(os.environ[VARIABLE])
    _run_next(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  no pathlib in each process's start
