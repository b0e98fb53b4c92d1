"""What REST and CLI can ask of studies. Writes intents and reads state; never launches anything."""

from __future__ import annotations

from autotune.domain.learned_bounds import learned_bounds
from autotune.domain.recipe import Recipe
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.domain.trial import TrialState
from autotune.engine.overview import StudyOverview, overview
from autotune.engine.ports import Clock, Page, SpaceSource, StudyStore, TemplateSource, TrialFilter
from autotune.engine.recipe_book import build_recipe
from autotune.engine.tailoring import tailor
from autotune.errors import InvalidStudy, Problem


class StudyService:
    """Use cases of studies on the ports. Thread-safe where the ports are."""

    def __init__(self, store: StudyStore, spaces: SpaceSource, templates: TemplateSource, clock: Clock) -> None:
        self._store = store
        self._spaces = spaces
        self._templates = templates
        self._clock = clock

    def create(self, spec: StudySpec, idempotency_key: str | None = None) -> Study:
        """Store a running study, which the dispatcher will find.

        Raises InvalidStudy with every problem; nothing is stored then.
        """
        problems: list[Problem] = []
        if spec.space not in self._spaces.names():
            problems.append(_unknown("space", spec.space, self._spaces.names()))
        if spec.deployment.template not in self._templates.names():
            problems.append(_unknown("deployment.template", spec.deployment.template, self._templates.names()))
        if problems:
            raise InvalidStudy("the study cannot be run", problems)
        template = self._templates.template(spec.deployment.template)
        space = tailor(self._spaces.space(spec.space), spec, template)
        return self._store.create_study(spec, space, idempotency_key)

    def overview(self, study_id: int) -> StudyOverview:
        """Raises NotFound."""
        study = self._store.study(study_id)
        seen = overview(study, self._store.briefs([study_id]).get(study_id, ()))
        failed = self._store.trials(study_id, TrialFilter(state=TrialState.FAILED)).items
        if not failed:
            return seen
        return seen.model_copy(update={"learned": learned_bounds(self._store.space_of(study_id), failed)})

    def overviews(self, state: StudyState | None = None, offset: int = 0, limit: int = 100) -> Page[StudyOverview]:
        """Newest first."""
        page = self._store.studies(state, offset, limit)
        briefs = self._store.briefs([s.id for s in page.items])
        return Page(items=tuple(overview(s, briefs.get(s.id, ())) for s in page.items), total=page.total)

    def cancel(self, study_id: int) -> Study:
        """End the study; the dispatcher ends what runs of it. Conflict when it is finished."""
        return self._store.finish_study(study_id, StudyState.CANCELLED, "cancelled by the user")

    def resume(self, study_id: int) -> Study:
        """Go on with a cancelled or failed study from what is stored. Conflict otherwise."""
        return self._store.resume_study(study_id)

    def recipe(self, study_id: int) -> Recipe:
        """Raises NotFound, and NothingToExport for a study that is not done."""
        study = self._store.study(study_id)
        trials = self._store.trials(study_id).items
        return build_recipe(study, self._store.space_of(study_id), trials, self._clock.now())


def _unknown(key: str, name: str, known: object) -> Problem:
    names = tuple(str(n) for n in known) if isinstance(known, list | tuple) else ()
    return Problem(key=key, message=f"unknown {key.rsplit('.', maxsplit=1)[-1]} {name}", allowed=names)
