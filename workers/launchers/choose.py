"""The one place that knows which launcher a template asks for."""

from __future__ import annotations

from autotune.domain.job import TrialJob
from autotune.domain.template import LaunchTemplate
from workers.attempt_files import AttemptFiles
from workers.launchers.attach import AttachLauncher
from workers.launchers.container import ContainerLauncher
from workers.launchers.launching import Launcher
from workers.launchers.local import LocalLauncher


def launcher_for(job: TrialJob, template: LaunchTemplate, files: AttemptFiles) -> Launcher:
    """Starts nothing yet. Raises InvalidTemplate for an address that may not be attached to."""
    if template.attach is not None:
        return AttachLauncher(job, template, files, template.attach)
    if template.container is not None:
        return ContainerLauncher(job, template, files, template.container)
    return LocalLauncher(job, template, files)
