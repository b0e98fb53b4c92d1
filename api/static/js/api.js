// The REST API, read-only.

const ROOT = "/api/v1";

export class ApiError extends Error {
  constructor(status, name, detail) {
    super(detail);
    this.status = status;
    this.name = name;
  }
}

async function ask(path) {
  let response;
  try {
    response = await fetch(ROOT + path, { headers: { Accept: "application/json" } });
  } catch {
    throw new ApiError(0, "Unreachable", "The service does not answer.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error ?? "Error", body.detail ?? `The service answered ${response.status}.`);
}

async function json(path) {
  return (await ask(path)).json();
}

function query(values) {
  return new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== "")).toString();
}

export const studies = (state, offset, limit) => json(`/studies?${query({ state, offset, limit })}`);
export const study = (id) => json(`/studies/${id}`);
export const trials = (id, offset, limit) => json(`/studies/${id}/trials?${query({ offset, limit })}`);
export const trial = (id, number) => json(`/studies/${id}/trials/${number}`);
export const hosts = () => json("/hosts");
export const recipe = (id) => json(`/studies/${id}/recipe`);
export const exportUrl = (id, format) => `${ROOT}/studies/${id}/export?${query({ format })}`;
export const logUrl = (id, number) => `${ROOT}/studies/${id}/trials/${number}/log`;
export const eventsUrl = (after, studyId) => `${ROOT}/events?${query({ after, study_id: studyId })}`;

export async function log(id, number) {
  return (await ask(`/studies/${id}/trials/${number}/log`)).text();
}
