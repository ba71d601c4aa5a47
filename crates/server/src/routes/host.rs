//! Information for operators: images, host checks, defaults and usage.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use orchestrator::{DayUsage, DefaultsView};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::access::Caller;
use crate::clock::now_ms;
use crate::extract::{AppState, Parameters};
use crate::openapi::QueryProblems;
use crate::problem::Problem;

const MAX_DAYS: u32 = 366;
const DEFAULT_DAYS: u32 = 30;

fn unknown(reason: String) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "host_unknown", reason)
}

/// List images
///
/// Same as `caisson image list --json`.
#[utoipa::path(
    get, path = "/v1/images", tag = "operations", operation_id = "list_images",
    responses(
        (status = 200, description = "`recipe`, `images` and `unfinished`", body = Object),
        (status = 503, description = "The images cannot be listed", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn images(State(state): State<AppState>) -> Result<Json<Value>, Problem> {
    state.host.images.get().await.map(Json).map_err(unknown)
}

/// Check what this host supports
///
/// Same as `caisson doctor --json`. The checks are at most 20 seconds old. `server` describes this server: `version`,
/// `data`, and `config` with the `file` and the changed settings that need a `reload` or a `restart`.
#[utoipa::path(
    get, path = "/v1/doctor", tag = "operations", operation_id = "doctor",
    responses(
        (status = 200, description = "`backend`, `checks` and `server`, with `isolation` and `enforced`, or with `error`", body = Object),
        (status = 503, description = "The host cannot be checked", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn doctor(State(state): State<AppState>) -> Result<Json<Value>, Problem> {
    let mut report = state.host.doctor.get().await.map_err(unknown)?;
    report["server"] = state.host.server.get().await.map_err(unknown)?;
    Ok(Json(report))
}

/// Get defaults and maximum limits
#[utoipa::path(
    get, path = "/v1/defaults", tag = "operations", operation_id = "defaults",
    responses((status = 200, description = "The settings of the operator", body = DefaultsView))
)]
pub(crate) async fn defaults(State(state): State<AppState>, caller: Caller) -> Json<DefaultsView> {
    let submitter = caller.submitter();
    Json(state.orchestrator.defaults(submitter.as_ref().map(|submitter| &submitter.key)))
}

/// How far to look back.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// Number of days, including today; default 30.
    #[param(minimum = 1, maximum = 366)]
    days: Option<u32>,
}

impl UsageQuery {
    fn days(&self) -> Result<u32, Problem> {
        match self.days.unwrap_or(DEFAULT_DAYS) {
            days @ 1..=MAX_DAYS => Ok(days),
            days => {
                let detail = format!("{days} is not between 1 and {MAX_DAYS}");
                Err(Problem::bad_request("invalid_query", detail).with_field("days"))
            }
        }
    }
}

/// What was used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageAnswer {
    /// Oldest first; without days that have no jobs.
    days: Vec<DayUsage>,
    /// Whether the counts are incomplete: only the newest 50,000 jobs are counted.
    truncated: bool,
}

/// Get usage per day
///
/// Deleted jobs are not counted. A submitter sees only its own jobs.
#[utoipa::path(
    get, path = "/v1/usage", tag = "operations", operation_id = "usage",
    params(UsageQuery),
    responses((status = 200, description = "Usage by the day in UTC on which jobs were accepted", body = UsageAnswer), QueryProblems)
)]
pub(crate) async fn usage(
    State(state): State<AppState>,
    Parameters(query): Parameters<UsageQuery>,
    caller: Caller,
) -> Result<Json<UsageAnswer>, Problem> {
    let (days, truncated) = state.orchestrator.usage(caller.restricted_to(), query.days()?, now_ms()).await?;
    Ok(Json(UsageAnswer { days, truncated }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_days_are_limited() {
        assert_eq!(UsageQuery::default().days().unwrap(), 30);
        for days in [0, 367] {
            assert_eq!(UsageQuery { days: Some(days) }.days().unwrap_err().field(), Some("days"));
        }
    }
}
