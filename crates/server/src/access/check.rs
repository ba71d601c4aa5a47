//! The access check that every request passes before its handler: authentication, authorization and rate limit.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use orchestrator::{Actor, JobId, Key, KeyId, Orchestrator, OrchestratorError, Session, Token};
use tokio::task::JoinError;
use tracing::Instrument as _;

use super::journal::{Deed, Journal, NOBODY, Ration};
use super::lease::{Lease, Revocable};
use super::oidc::{self, Oidc, PERSON};
use super::pace::Pace;
use super::permission::{Permission, RouteAccess};
use super::session::Transport;
use super::subject::Subject;
use super::{Caller, Guest, session, share};
use crate::arrival::{Arrival, Connected};
use crate::origins::JobNames;
use crate::problem::Problem;
use crate::settings::ServerSettings;

/// The state of the access check.
pub(crate) struct Access {
    orchestrator: Orchestrator,
    settings: Arc<ServerSettings>,
    pace: Pace,
    oidc: Option<Oidc>,
}

impl Access {
    pub(crate) fn new(orchestrator: Orchestrator, settings: Arc<ServerSettings>) -> Self {
        let oidc = settings.oidc.clone().and_then(|oidc| {
            let made = Oidc::new(oidc);
            made.inspect_err(|error| tracing::error!(%error, "nobody can log in with an account elsewhere"))
                .ok()
        });
        if let Some(oidc) = &settings.oidc {
            orchestrator.admit_people(oidc.limits.clone());
        }
        Self { orchestrator, settings, pace: Pace::default(), oidc }
    }

    /// The OpenID provider, if one is configured.
    pub(crate) fn oidc(&self) -> Option<&Oidc> {
        self.oidc.as_ref()
    }

    pub(crate) fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        self.settings.access_log.journal()
    }

    /// The authenticated caller. `None` if the request has no credentials, an error if they are invalid.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Option<(Caller, Lease)>, Problem> {
        if !self.orchestrator.needs_keys() {
            return Ok(Some((Caller::Anybody, Lease::of(&self.orchestrator, None, None))));
        }
        let lease = |key: &Key, until_ms| Lease::of(&self.orchestrator, Some(&key.id), until_ms);
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            let key = self.by_token(value).ok_or_else(key_unknown)?;
            let lease = lease(&key, None);
            return Ok(Some((Caller::Key(key), lease)));
        }
        let opened = session::find(headers).filter_map(|sealed| self.by_session(sealed));
        let opened = session::only(opened).map_err(|session::Differing| sessions_differ())?;
        Ok(opened.map(|session::Opened { key, id, until_ms }| {
            let lease = lease(&key, Some(until_ms)).with(Revocable::Session(id));
            (Caller::Key(key), lease)
        }))
    }

    /// All sessions of a request, also those of different callers.
    pub(crate) fn sessions(&self, headers: &HeaderMap) -> Vec<Session> {
        session::find(headers).filter_map(|sealed| self.orchestrator.session(sealed)).collect()
    }

    fn by_token(&self, value: &HeaderValue) -> Option<Arc<Key>> {
        let token = value.to_str().ok()?.strip_prefix("Bearer ")?.trim();
        self.orchestrator.key_of(&Token::parse(token)?)
    }

    /// The account of a sealed session.
    fn by_session(&self, sealed: &str) -> Option<session::Opened> {
        let Session { id, who, until_ms } = self.orchestrator.session(sealed)?;
        let key = if who.starts_with(PERSON) {
            // Once the provider is removed from the configuration, its sessions no longer count.
            self.oidc.as_ref().and_then(|_| oidc::person_of(&who)).map(|person| {
                let limits = self.orchestrator.limits_of_people(person.role);
                Arc::new(Key { limits, ..person })
            })
        } else {
            self.orchestrator.key(&KeyId::from(who))
        };
        key.map(|key| session::Opened { key, id, until_ms })
    }

    async fn admit(&self, permission: Permission, subject: &Subject, caller: &Caller) -> Result<(), Problem> {
        let Caller::Key(key) = caller else { return Ok(()) };
        self.check_pace(caller)?;
        if !permission.is_granted_to(key.role) {
            return Err(forbidden(key, permission));
        }
        for job in subject.jobs()? {
            if !self.sees(caller, *job).await? {
                return Err(OrchestratorError::NoJob(*job).into());
            }
        }
        Ok(())
    }

    /// Whether a job exists from this caller's point of view.
    pub(crate) async fn sees(&self, caller: &Caller, job: JobId) -> Result<bool, Problem> {
        let Some(own) = caller.sees_only() else { return Ok(true) };
        Ok(self.orchestrator.submitter(job).await? == Some(own))
    }

    /// Whether a caller may work in the sandbox of a job.
    pub(crate) async fn may_work(&self, caller: &Caller, job: JobId) -> bool {
        let may = caller.role().is_some_and(|role| Permission::Change.is_granted_to(role));
        may && self.sees(caller, job).await.unwrap_or(false)
    }

    /// The caller of a permitted request, or the caller and the error response.
    async fn identify(
        &self,
        (route, subject): (RouteAccess, &Subject),
        (method, uri): (&Method, &Uri),
        headers: &HeaderMap,
    ) -> Result<(Caller, Lease), (Caller, Response)> {
        let guest = || share::admitting(&self.orchestrator, (route, subject), (method, uri), headers);
        let refused = match self.caller(headers) {
            Ok(Some((caller, lease))) => match self.admit(route.permission, subject, &caller).await {
                Ok(()) => return Ok((caller, lease)),
                Err(problem) => (caller, problem.into_response()),
            },
            // A browser with sessions of different callers must still be able to log out and in again.
            Ok(None) | Err(_)
                if !headers.contains_key(header::AUTHORIZATION)
                    && route.permission == Permission::Nothing =>
            {
                return Ok((Caller::Nobody, Lease::of_all(&self.orchestrator)));
            }
            Ok(None) => (Caller::Nobody, unauthorized(key_missing())),
            Err(problem) => (Caller::Nobody, unauthorized(problem)),
        };
        match guest() {
            Some((share, until_ms)) => {
                let lease = share.lease(&self.orchestrator, until_ms);
                let guest = Guest { rights: share.rights, shared_by: share.by };
                Ok((Caller::Guest(guest), lease))
            }
            None => Err(refused),
        }
    }

    /// Records a request in the access log. Ordinary reads are not recorded; reads of content on routes marked
    /// `logged` are. Those reads, and all requests without a key, are rate limited so that they cannot push out the
    /// entries of others.
    pub(crate) fn note(
        &self,
        who: Who<'_>,
        from: Option<IpAddr>,
        (method, path): (&Method, &str),
        (status, kind): (StatusCode, Kind),
    ) {
        let looks = is_look(method);
        let is_told =
            status == StatusCode::SWITCHING_PROTOCOLS || (kind == Kind::Told && !status.is_client_error());
        let is_refused =
            kind == Kind::Failed || kind != Kind::OfJob && matches!(status.as_u16(), 401 | 403 | 429);
        if looks && !is_refused && !is_told {
            return;
        }
        let (name, key, ration) = match who {
            Who::Nobody if status == StatusCode::UNAUTHORIZED => (NOBODY, None, Some(Ration::Strangers)),
            Who::Nobody => (NOBODY, None, Some(Ration::Nobody)),
            Who::Known(Actor { name, key }) => {
                (name.as_str(), key.as_ref(), is_refused.then(|| Ration::Caller(name.clone())))
            }
        };
        let deed = Deed::new(name, from, method.as_str(), path, status.as_u16()).by_key(key);
        match ration {
            Some(ration) => self.journal().write_rationed(&ration, deed),
            None if looks => self.journal().write_look(deed),
            None => self.journal().write(deed),
        }
    }

    /// The host names below which jobs have their origins.
    pub(crate) fn job_names(&self) -> JobNames {
        JobNames::new(&self.settings)
    }

    /// Whether the request's connection is encrypted.
    pub(crate) fn transport(&self, request: &Request) -> Transport {
        let connected = request.extensions().get::<Connected>().copied();
        Arrival::new(connected, request.headers()).transport(&self.settings)
    }

    /// The client's address.
    pub(crate) fn client(&self, request: &Request) -> Option<IpAddr> {
        let connected = request.extensions().get::<Connected>().copied();
        Arrival::new(connected, request.headers()).client(&self.settings)
    }

    /// Rejects a request of a key that exceeds its rate limit.
    pub(crate) fn check_pace(&self, caller: &Caller) -> Result<(), Problem> {
        match caller {
            Caller::Key(key) if !self.pace.allows(key, Instant::now()) => Err(too_fast(key)),
            _ => Ok(()),
        }
    }
}

/// Middleware: rejects a request, or attaches the caller and runs the handler. A request that may change something
/// runs to completion and is logged even if the client disconnects. Otherwise a client could avoid the log by hanging
/// up.
pub(crate) async fn check(
    State((access, route)): State<(Arc<Access>, RouteAccess)>,
    request: Request,
    next: Next,
) -> Response {
    if is_look(request.method()) {
        return answer(access, route, request, next).await;
    }
    let work = tokio::spawn(answer(access, route, request, next).instrument(tracing::Span::current()));
    match work.await.map_err(JoinError::try_into_panic) {
        Ok(response) => response,
        // The layer that catches panics of handlers catches this one too.
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Problem::internal("the server is shutting down").into_response(),
    }
}

fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

async fn answer(access: Arc<Access>, route: RouteAccess, mut request: Request, next: Next) -> Response {
    let subject = Subject::of(&mut request).await;
    let from = access.client(&request);
    let kind = if route.logged { Kind::Told } else { Kind::Plain };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let known = access.identify((route, &subject), (&method, request.uri()), request.headers()).await;
    let (caller, response) = match known {
        Ok((caller, lease)) => {
            *request.uri_mut() = share::without_link(request.uri());
            let extensions = request.extensions_mut();
            extensions.insert(caller.clone());
            extensions.insert(lease);
            extensions.insert(subject);
            (caller, next.run(request).await)
        }
        Err(refused) => refused,
    };
    let actor = caller.actor();
    let known = match &caller {
        Caller::Nobody => Who::Nobody,
        _ => Who::Known(&actor),
    };
    // A caller who has just logged in was unauthenticated before.
    let (who, kind) = match response.extensions().get::<LoginOutcome>() {
        Some(LoginOutcome::Done(actor)) => (Who::Known(actor), Kind::Told),
        Some(LoginOutcome::Failed) => (known, Kind::Failed),
        None => (known, kind),
    };
    access.note(who, from, (&method, &path), (response.status(), kind));
    response
}

/// The caller of a request, for the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who<'a> {
    /// A caller without a valid key.
    Nobody,
    /// A known caller: the name of the key, or its substitute, and the key's id.
    Known(&'a Actor),
}

/// How the access log treats a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Told,
    /// The request failed, whatever its status says.
    Failed,
    /// The response came from a server inside a job.
    OfJob,
}

/// The result of a login, attached to the response.
#[derive(Debug, Clone)]
pub(crate) enum LoginOutcome {
    /// Succeeded, for this account.
    Done(Actor),
    Failed,
}

/// A 401 response with `WWW-Authenticate`.
fn unauthorized(problem: Problem) -> Response {
    let mut response = problem.into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn key_missing() -> Problem {
    let detail = "this server asks for a key: send `Authorization: Bearer <key>`, set CAISSON_KEY for the command line, \
                  or log in on the web page";
    Problem::new(StatusCode::UNAUTHORIZED, "key_missing", detail)
}

fn sessions_differ() -> Problem {
    let detail = "the browser shows sessions of two callers; log out, or remove the cookies of this site, and log in again";
    Problem::new(StatusCode::UNAUTHORIZED, "sessions_differ", detail)
}

fn key_unknown() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "key_unknown", "this server knows no such key, or no longer")
}

fn forbidden(key: &Key, permission: Permission) -> Problem {
    let detail =
        format!("the key `{}` is one of a {} and may not {}", key.name, key.role, permission.words());
    Problem::new(StatusCode::FORBIDDEN, "role_too_weak", detail)
}

fn too_fast(key: &Key) -> Problem {
    let rate = key.limits.requests_per_second.unwrap_or_default();
    let detail = format!("the key `{}` may send {rate} requests a second", key.name);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_fast", detail).after(1)
}
