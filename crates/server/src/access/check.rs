//! The access check that every request passes before its handler: authentication, authorization and rate limit.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use job::{Actor, JobId, Key, KeyId};
use orchestrator::{Orchestrator, OrchestratorError, Session, StoreError, Token};
use tokio::task::JoinError;
use tracing::Instrument as _;

use super::grant::{AccessGrant, Revocable};
use super::oidc::{self, OIDC_KEY_PREFIX, Oidc};
use super::permission::{Permission, RouteAccess};
use super::subject::Subject;
use super::{Caller, Guest, session_cookie, shared_link};
use crate::access_log::{AccessLogEntry, AccessLogInner, LogGroup, NOBODY};
use crate::guard::{ClientInfo, ConnectionInfo, Transport};
use crate::problem::Problem;
use crate::settings::ServerSettings;

/// The state of the access check.
pub(crate) struct Access {
    orchestrator: Orchestrator,
    settings: Arc<ServerSettings>,
    oidc: Option<Oidc>,
}

impl Access {
    pub(crate) fn new(orchestrator: Orchestrator, settings: Arc<ServerSettings>) -> Self {
        let oidc = settings.oidc.clone().and_then(|oidc| {
            let client = Oidc::new(oidc);
            client
                .inspect_err(|error| tracing::error!(%error, "login with OpenID Connect is not available"))
                .ok()
        });
        if let Some(oidc) = &settings.oidc {
            orchestrator.enable_oidc_login(oidc.limits.clone());
        }
        Self { orchestrator, settings, oidc }
    }

    /// The OpenID provider, if one is configured.
    pub(crate) fn oidc(&self) -> Option<&Oidc> {
        self.oidc.as_ref()
    }

    pub(crate) fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    pub(crate) fn access_log(&self) -> &Arc<AccessLogInner> {
        self.settings.access_log.access_log()
    }

    /// The authenticated caller. `None` if the request has no credentials, an error if they are invalid.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Option<(Caller, AccessGrant)>, Problem> {
        if !self.orchestrator.requires_authentication() {
            return Ok(Some((Caller::Anybody, AccessGrant::of(&self.orchestrator, None, None))));
        }
        let grant = |key: &Key, until_ms| AccessGrant::of(&self.orchestrator, Some(&key.id), until_ms);
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            let key = self.key_by_token(value).ok_or_else(key_unknown)?;
            let grant = grant(&key, None);
            return Ok(Some((Caller::Key(key), grant)));
        }
        let opened = session_cookie::find(headers).filter_map(|sealed| self.open_session(sealed));
        let opened =
            session_cookie::only(opened).map_err(|session_cookie::ConflictingSessions| sessions_differ())?;
        Ok(opened.map(|session_cookie::ActiveSession { key, id, until_ms }| {
            let grant = grant(&key, Some(until_ms)).with(Revocable::Session(id));
            (Caller::Key(key), grant)
        }))
    }

    /// All sessions of a request, also those of different callers.
    pub(crate) fn sessions(&self, headers: &HeaderMap) -> Vec<Session> {
        session_cookie::find(headers).filter_map(|sealed| self.orchestrator.session(sealed)).collect()
    }

    fn key_by_token(&self, value: &HeaderValue) -> Option<Arc<Key>> {
        let token = value.to_str().ok()?.strip_prefix("Bearer ")?.trim();
        self.orchestrator.key_of(&Token::parse(token)?)
    }

    /// The account of a sealed session.
    fn open_session(&self, sealed: &str) -> Option<session_cookie::ActiveSession> {
        let Session { id, who, until_ms } = self.orchestrator.session(sealed)?;
        let key = if who.starts_with(OIDC_KEY_PREFIX) {
            // Once the provider is removed from the configuration, its sessions no longer count.
            self.oidc.as_ref().and_then(|_| oidc::decode_account(&who)).map(|account| {
                let limits = self.orchestrator.oidc_limits(account.role);
                Arc::new(Key { limits, ..account })
            })
        } else {
            self.orchestrator.key(&KeyId::from(who))
        };
        key.map(|key| session_cookie::ActiveSession { key, id, until_ms })
    }

    async fn authorize(
        &self,
        permission: Permission,
        subject: &Subject,
        caller: &Caller,
    ) -> Result<(), Problem> {
        let Caller::Key(key) = caller else { return Ok(()) };
        self.check_rate_limit(caller)?;
        if !permission.is_granted_to(key.role) {
            return Err(forbidden(key, permission));
        }
        for job in subject.jobs()? {
            if !self.can_see(caller, *job).await? {
                return Err(subject.not_found(*job).into());
            }
        }
        Ok(())
    }

    /// Whether a job exists from this caller's point of view.
    pub(crate) async fn can_see(&self, caller: &Caller, job: JobId) -> Result<bool, Problem> {
        let Some(own) = caller.restricted_to() else { return Ok(true) };
        match self.orchestrator.submitter(job).await {
            Ok(submitter) => Ok(submitter == Some(own)),
            Err(OrchestratorError::Store(StoreError::NoJob(_))) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a caller may work in the sandbox of a job.
    pub(crate) async fn can_use_sandbox(&self, caller: &Caller, job: JobId) -> bool {
        let may = caller.role().is_some_and(|role| Permission::Change.is_granted_to(role));
        may && self.can_see(caller, job).await.unwrap_or(false)
    }

    /// The caller of a permitted request, or the caller and the error response.
    async fn authenticate(
        &self,
        (route, subject): (RouteAccess, &Subject),
        (method, uri): (&Method, &Uri),
        headers: &HeaderMap,
    ) -> Result<(Caller, AccessGrant), (Caller, Response)> {
        let guest = || shared_link::find_link(&self.orchestrator, (route, subject), (method, uri), headers);
        let refused = match self.caller(headers) {
            Ok(Some((caller, grant))) => match self.authorize(route.permission, subject, &caller).await {
                Ok(()) => return Ok((caller, grant)),
                Err(problem) => (caller, problem.into_response()),
            },
            // A browser with sessions of different callers must still be able to log out and in again.
            Ok(None) | Err(_)
                if !headers.contains_key(header::AUTHORIZATION)
                    && route.permission == Permission::Nothing =>
            {
                return Ok((Caller::Nobody, AccessGrant::unrestricted(&self.orchestrator)));
            }
            Ok(None) => (Caller::Nobody, unauthorized(key_missing())),
            Err(problem) => (Caller::Nobody, unauthorized(problem)),
        };
        match guest() {
            Some((share, until_ms)) => {
                let grant = share.grant(&self.orchestrator, until_ms);
                let guest = Guest { rights: share.rights, shared_by: share.by };
                Ok((Caller::Guest(guest), grant))
            }
            None => Err(refused),
        }
    }

    /// Records a request in the access log. Ordinary reads are not recorded; reads of content on routes marked
    /// `logged` are. Those reads, and all requests without a key, are rate limited so that they cannot push out the
    /// entries of others.
    pub(crate) fn log_request(
        &self,
        who: LogCaller<'_>,
        from: Option<IpAddr>,
        (method, path): (&Method, &str),
        (status, kind): (StatusCode, LogKind),
    ) {
        let reads = is_read(method);
        let is_logged_read = status == StatusCode::SWITCHING_PROTOCOLS
            || (kind == LogKind::Logged && !status.is_client_error());
        let is_refused =
            kind == LogKind::Failed || kind != LogKind::FromJob && matches!(status.as_u16(), 401 | 403 | 429);
        if reads && !is_refused && !is_logged_read {
            return;
        }
        let (name, key, group) = match who {
            LogCaller::Nobody if status == StatusCode::UNAUTHORIZED => {
                (NOBODY, None, Some(LogGroup::UnknownKey))
            }
            LogCaller::Nobody => (NOBODY, None, Some(LogGroup::Nobody)),
            LogCaller::Known(Actor { name, key }) => {
                (name.as_str(), key.as_ref(), is_refused.then(|| LogGroup::Caller(name.clone())))
            }
        };
        let entry = AccessLogEntry::new(name, from, method.as_str(), path, status.as_u16()).by_key(key);
        match group {
            Some(group) => self.access_log().log_limited(&group, entry),
            None if reads => self.access_log().log_read(entry),
            None => self.access_log().write(entry),
        }
    }

    pub(crate) fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// Whether the request's connection is encrypted.
    pub(crate) fn transport(&self, request: &Request) -> Transport {
        let connected = request.extensions().get::<ConnectionInfo>().copied();
        ClientInfo::new(connected, request.headers()).transport(&self.settings)
    }

    /// The client's address.
    pub(crate) fn client(&self, request: &Request) -> Option<IpAddr> {
        let connected = request.extensions().get::<ConnectionInfo>().copied();
        ClientInfo::new(connected, request.headers()).client(&self.settings)
    }

    /// Rejects a request of a key that exceeds its rate limit.
    pub(crate) fn check_rate_limit(&self, caller: &Caller) -> Result<(), Problem> {
        match caller {
            Caller::Key(key) if !self.orchestrator.allows_request(key) => Err(rate_limited(key)),
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
    if is_read(request.method()) {
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

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

async fn answer(access: Arc<Access>, route: RouteAccess, mut request: Request, next: Next) -> Response {
    let subject = Subject::of(&mut request).await;
    let from = access.client(&request);
    let kind = if route.logged { LogKind::Logged } else { LogKind::Plain };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let known = access.authenticate((route, &subject), (&method, request.uri()), request.headers()).await;
    let (caller, response) = match known {
        Ok((caller, grant)) => {
            *request.uri_mut() = shared_link::without_link(request.uri());
            let extensions = request.extensions_mut();
            extensions.insert(caller.clone());
            extensions.insert(grant);
            extensions.insert(subject);
            (caller, next.run(request).await)
        }
        Err(refused) => refused,
    };
    let actor = caller.actor();
    let known = match &caller {
        Caller::Nobody => LogCaller::Nobody,
        _ => LogCaller::Known(&actor),
    };
    // A caller who has just logged in was unauthenticated before.
    let (who, kind) = match response.extensions().get::<LoginOutcome>() {
        Some(LoginOutcome::Done(actor)) => (LogCaller::Known(actor), LogKind::Logged),
        Some(LoginOutcome::Failed) => (known, LogKind::Failed),
        None => (known, kind),
    };
    access.log_request(who, from, (&method, &path), (response.status(), kind));
    response
}

/// The caller of a request, for the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogCaller<'a> {
    /// A caller without a valid key.
    Nobody,
    /// A known caller: the name of the key, or its substitute, and the key's id.
    Known(&'a Actor),
}

/// How the access log treats a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogKind {
    Plain,
    Logged,
    /// The request failed, whatever its status says.
    Failed,
    /// The response came from a server inside a job.
    FromJob,
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
    let detail = "an API key is required: send `Authorization: Bearer <key>`, set CAISSON_KEY for the command line, \
                  or log in on the web page";
    Problem::new(StatusCode::UNAUTHORIZED, "key_missing", detail)
}

fn sessions_differ() -> Problem {
    let detail =
        "the request has session cookies of two users; delete the cookies of this site and log in again";
    Problem::new(StatusCode::UNAUTHORIZED, "sessions_differ", detail)
}

fn key_unknown() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "key_unknown", "unknown or revoked API key")
}

fn forbidden(key: &Key, permission: Permission) -> Problem {
    let detail = format!(
        "the API key `{}` has the role {} and may not {}",
        key.name,
        key.role,
        permission.description()
    );
    Problem::new(StatusCode::FORBIDDEN, "role_too_weak", detail)
}

fn rate_limited(key: &Key) -> Problem {
    let rate = key.limits.requests_per_second.unwrap_or_default();
    let detail = format!("the API key `{}` is limited to {rate} requests per second", key.name);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).after(1)
}
