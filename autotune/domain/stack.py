"""The versions and the chip that a space is used on, and what is limited to some of them."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator

from autotune.domain.value import Value

PARTS = ("engine", "cann", "torch_npu")


class StackVersions(Value):
    """What is installed. None means unknown: nothing is left out for the sake of an unknown version.

    `chip` is `910B`, `910C` or `950DT`; a release candidate counts as its release.
    """

    engine: str | None = None
    cann: str | None = None
    torch_npu: str | None = None
    chip: str | None = None

    @field_validator(*PARTS)
    @classmethod
    def _versions(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                Version(text)
            except InvalidVersion:
                raise ValueError(f"{text!r} is not a version such as 0.23.0") from None
        return text

    def over(self, other: StackVersions) -> StackVersions:
        """What is known here, and where nothing is, what the other knows."""
        own = {name: value for name, value in self if value is not None}
        return other.model_copy(update=own)


class Needs(Value):
    """Where a knob, a value, a setting or a rule exists: version ranges (`>=0.22,<0.24`) and chips."""

    engine: str | None = None
    cann: str | None = None
    torch_npu: str | None = None
    chips: tuple[str, ...] = Field(default=())

    @field_validator(*PARTS)
    @classmethod
    def _ranges(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                SpecifierSet(text)
            except InvalidSpecifier:
                raise ValueError(f"{text!r} is not a version range such as >=0.22,<0.24") from None
        return text

    def missing(self, stack: StackVersions) -> str | None:
        """Why this does not exist on the stack, in a few words; None where it does or may."""
        if self.chips and stack.chip is not None and stack.chip not in self.chips:
            return f"only on {', '.join(self.chips)}, not on {stack.chip}"
        for part in PARTS:
            wanted, found = getattr(self, part), getattr(stack, part)
            if wanted is None or found is None:
                continue
            # A candidate of 0.23 behaves like 0.23, not like 0.22: compare the release it leads to.
            if Version(Version(found).base_version) not in SpecifierSet(wanted):
                return f"needs {part} {wanted}, here is {found}"
        return None

    def unknown(self, stack: StackVersions) -> str | None:
        """The first part that this is limited in and whose version is not known on the stack."""
        wanted = [part for part in PARTS if getattr(self, part) is not None]
        return next((part for part in wanted if getattr(stack, part) is None), None)


EVERYWHERE = Needs()
