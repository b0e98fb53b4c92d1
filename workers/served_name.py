"""Under which name a server offers its model, so that no other server can be taken for it.

A leftover of another attempt may sit on our port and serve the very same model. The name that this attempt's server
is given ends with the attempt's uid: `/v1/models` of any other server does not list it. Exports and provenance keep
the plain name.
"""

from __future__ import annotations

import re

from autotune.domain.job import TrialJob
from autotune.domain.template import LaunchTemplate, RoleTemplate

# How engines are told the name; elsewhere `{model}` may be part of a path. vLLM and SGLang; llama.cpp.
NAMING_FLAGS = ("--served-model-name", "--alias", "-a")
MODEL = "{model}"

_JOINED = re.compile(rf"^({'|'.join(NAMING_FLAGS)})=\{{model\}}$")


def served_name(template: LaunchTemplate, job: TrialJob) -> str:
    """What requests call the model: the attempt's own name where the template lets one be given.

    A server that runs already has the name that the template gives for the model.
    """
    if template.attach is not None:
        return template.models.get(job.deployment.model, job.deployment.model)
    if any(_places(role) for role in template.roles.values()):
        return _own_name(job)
    return job.deployment.model


def named_words(role: RoleTemplate, job: TrialJob) -> tuple[str, ...]:
    """The role's command with the attempt's own name in place of `{model}` where the served name stands."""
    places = _places(role)
    own = _own_name(job)
    return tuple(word.replace(MODEL, own) if n in places else word for n, word in enumerate(role.argv))


def _own_name(job: TrialJob) -> str:
    return f"{job.deployment.model}-{job.uid}"


def _places(role: RoleTemplate) -> frozenset[int]:
    flags = ("", *role.argv)
    return frozenset(
        n
        for n, (flag, word) in enumerate(zip(flags, role.argv, strict=False))
        if _JOINED.match(word) or (word == MODEL and flag in NAMING_FLAGS)
    )
