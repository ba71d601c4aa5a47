//! Shared links: create, list, revoke and open.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use job::{Actor, NewSharedLink, SessionId, SharedLink};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{AccessGrant, Caller, Revocable, Rights, Share, View};
use crate::clock::{now_ms, timestamp};
use crate::extract::{AppState, BaseUrl, JobPath, JsonBody, SharePath};
use crate::guard::ClientInfo;
use crate::openapi::{BodyProblems, JobProblems, NewShareProblems, ShareProblems};
use crate::origins;
use crate::problem::Problem;

/// The query parameter that is passed on to a notebook.
const TAKEOVER: &str = "takeover=";
const DEFAULT_S: u64 = 3600;
const MAX_S: u64 = 30 * 24 * 3600;

/// What to share.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewShare {
    /// `desktop`, `terminal`, `files`, `output`, `events`, `notebook`, or a port such as `5173`.
    #[schema(example = "desktop")]
    view: String,
    /// Lifetime of the link in seconds; default an hour, at most 30 days. A link created in an OpenID Connect session ends with that
    /// session.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 2_592_000)]
    for_s: Option<u64>,
    /// `watch` for view-only access, or `use` to allow typing and clicking. A port always has `use`.
    #[serde(default)]
    rights: Rights,
    /// For the web page, which opens notebooks and ports this way: the link ends with the current session and is not listed.
    #[serde(default)]
    this_login: bool,
}

/// A link.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShareAnswer {
    /// Id of the link, for `DELETE`; absent with `this_login`.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The link.
    url: String,
    /// The view.
    view: String,
    /// The rights of the link.
    rights: Rights,
    /// When it expires. It also ends when it is revoked, or when the key that created it is revoked.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// A link on record.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SharedLinkAnswer {
    /// Id of the link. The link itself is returned only once, when it is created.
    id: String,
    /// The view.
    view: String,
    /// The rights of the link.
    rights: Rights,
    /// Who created it.
    made_by: Actor,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it expires.
    #[schema(format = DateTime)]
    expires_at: String,
}

impl From<SharedLink> for SharedLinkAnswer {
    fn from(link: SharedLink) -> Self {
        Self {
            id: link.id.as_str().to_owned(),
            view: link.view,
            rights: if link.may_use { Rights::Use } else { Rights::Watch },
            made_by: link.by,
            created_at: timestamp(link.created_ms),
            expires_at: timestamp(link.until_ms),
        }
    }
}

/// The links of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShareListAnswer {
    /// The valid links, newest first.
    shares: Vec<SharedLinkAnswer>,
}

/// Share one view of a job
///
/// Anyone with the link can open this view, and nothing else, without an API key until the link expires or is revoked.
#[utoipa::path(
    post, path = "/shares", tag = "sandbox", operation_id = "job_share",
    params(("id" = job::JobId, Path, description = "The job")),
    request_body(content = NewShare),
    responses(
        (status = 201, description = "The link", body = ShareAnswer),
        NewShareProblems,
        JobProblems,
        BodyProblems
    )
)]
pub(crate) async fn share(
    State(state): State<AppState>,
    JobPath(job): JobPath,
    caller: Caller,
    Extension(grant): Extension<AccessGrant>,
    base: BaseUrl,
    JsonBody(new): JsonBody<NewShare>,
) -> Result<Response, Problem> {
    state.orchestrator.job(job).await?;
    let view: View = new.view.parse().map_err(|problem: String| Problem::invalid_field("view", problem))?;
    let lifetime_s = new.for_s.unwrap_or(DEFAULT_S);
    if !(1..=MAX_S).contains(&lifetime_s) {
        return Err(Problem::invalid_field("for_s", format!("{lifetime_s} is not between 1 and {MAX_S}")));
    }
    let rights = if matches!(view, View::Port(_)) { Rights::Use } else { new.rights };
    // An OIDC login expires, and links created in it end with it.
    let ends_with = if new.this_login { Some(this_login(&grant, view)?) } else { grant.oidc_session() };
    let lifetime_s = ends_with.map_or(lifetime_s, |(_, left_s)| lifetime_s.min(left_s));
    let until_ms =
        now_ms().saturating_add(i64::try_from(lifetime_s).unwrap_or(i64::MAX).saturating_mul(1000));
    let session = ends_with.map(|(session, _)| session.clone());
    let (id, with) = match session {
        Some(session) if new.this_login => (None, Revocable::Session(session)),
        session => {
            let (view, may_use, by) = (view.to_string(), rights == Rights::Use, caller.actor());
            let link = NewSharedLink { job, view, may_use, by, session, until_ms };
            let link = state.orchestrator.add_share(link).await?;
            (Some(link.id.as_str().to_owned()), Revocable::Link(link.id))
        }
    };
    let share = Share { job, view, rights, by: caller.submitter().map(|submitter| submitter.key), with };
    let sealed = share.seal(&state.orchestrator, Duration::from_secs(lifetime_s));
    let answer = ShareAnswer {
        id,
        url: format!("{}/share/{sealed}", base.0),
        view: view.to_string(),
        rights,
        expires_at: timestamp(until_ms),
    };
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// The current login session and its remaining seconds. Only views on the origins of jobs can be limited to a login.
fn this_login(grant: &AccessGrant, view: View) -> Result<(&SessionId, u64), Problem> {
    if !matches!(view, View::Notebook | View::Port(_)) {
        return Err(Problem::invalid_field("this_login", "is only possible for notebooks and ports"));
    }
    grant.session().ok_or_else(|| {
        Problem::invalid_field("this_login", "needs a login session; with an API key, open the view directly")
    })
}

/// List share links of a job
///
/// The valid links with their creators and rights. The links themselves are not returned again.
#[utoipa::path(
    get, path = "/shares", tag = "sandbox", operation_id = "list_shares",
    params(("id" = job::JobId, Path, description = "The job")),
    responses((status = 200, description = "Newest first", body = ShareListAnswer), JobProblems)
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    JobPath(job): JobPath,
) -> Result<Json<ShareListAnswer>, Problem> {
    state.orchestrator.job(job).await?;
    let links = state.orchestrator.shares(job).into_iter();
    let holding = links.filter(|link| Share::creator_is_valid(&state.orchestrator, link.by.key.as_ref()));
    Ok(Json(ShareListAnswer { shares: holding.map(SharedLinkAnswer::from).collect() }))
}

/// Revoke a share link
///
/// The link ends at once, and views opened with it close.
#[utoipa::path(
    delete, path = "/shares/{share}", tag = "sandbox", operation_id = "revoke_share",
    params(
        ("id" = job::JobId, Path, description = "The job"),
        ("share" = String, Path, description = "The id of the link"),
    ),
    responses(
        (status = 204, description = "Revoked"),
        ShareProblems
    )
)]
pub(crate) async fn revoke(
    State(state): State<AppState>,
    SharePath { job, share }: SharePath,
) -> Result<StatusCode, Problem> {
    state.orchestrator.job(job).await?;
    state.orchestrator.revoke_share(job, &share).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Open a shared view
///
/// Sets a cookie for this view only and redirects to it.
#[utoipa::path(
    get, path = "/share/{link}", tag = "basic", operation_id = "open_share",
    params(("link" = String, Path, description = "The token of the link")),
    responses(
        (status = 303, description = "Redirect to the view"),
        (status = 410, description = "`share_over`: the link is not valid or has expired", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn open(
    State(state): State<AppState>,
    Path(link): Path<String>,
    client_info: ClientInfo,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Some(share) = Share::open(&state.orchestrator, &link) else {
        let detail = "this link is not valid or has expired; ask the sender for a new one";
        return Err(Problem::new(StatusCode::GONE, "share_over", detail));
    };
    let job = share.job;
    let location = match share.view {
        View::Desktop => format!("/v1/jobs/{job}/desktop"),
        View::Events => format!("/v1/jobs/{job}/events"),
        View::Output => format!("/jobs/{job}/output.zip"),
        View::Terminal | View::Files => format!("/#/shared/{job}/{}", share.view),
        View::Notebook | View::Port(_) => {
            let transport = client_info.transport(&state.settings);
            let domains = origins::JobDomains::new(&state.settings);
            let url = origins::entry_url(&domains, &share, &link, transport, &headers);
            // A notebook also needs the takeover token. A server on a port has no use for it.
            let token =
                uri.query().filter(|query| share.view == View::Notebook && query.starts_with(TAKEOVER));
            url.map(|url| token.iter().fold(url, |url, token| format!("{url}&{token}"))).ok_or_else(|| {
                let detail = "previews work on loopback names of the server's machine, or below the `job_domain` that the operator sets";
                Problem::new(StatusCode::CONFLICT, "not_on_loopback", detail)
            })?
        }
    };
    let location =
        HeaderValue::try_from(location).map_err(|_| Problem::internal("the link leads nowhere"))?;
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response();
    // The seal contains the expiry, so the cookie may outlive it.
    if let Some(cookie) = share.cookie(&link, MAX_S, client_info.transport(&state.settings)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
