//! Login with OpenID Connect: the redirect to the provider and the callback.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::Actor;
use orchestrator::SealPurpose;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::access::{LoginOutcome, OIDC_SESSION_LIFETIME, PendingLogin, encode_account, session_cookie};
use crate::extract::{AppState, BaseUrl, Parameters};
use crate::guard::{ClientInfo, Transport};
use crate::openapi::QueryProblems;
use crate::problem::Problem;

const COOKIE: &str = "caisson_login";
const PROBLEM_COOKIE: &str = "caisson_login_problem";
/// How many characters of the reason for a failed login are kept.
const MAX_REASON_CHARS: usize = 300;
/// How long a user may take at the provider.
const LOGIN_LIFETIME: Duration = Duration::from_secs(600);

/// Log in with OpenID Connect
///
/// For browsers: redirects to the OpenID Connect provider.
#[utoipa::path(
    get, path = "/v1/login", tag = "operations", operation_id = "log_in_elsewhere",
    responses(
        (status = 303, description = "Redirect to the provider"),
        (status = 404, description = "`no_provider`: no provider is configured", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
        (status = 502, description = "`provider_failed`", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn begin(
    State(state): State<AppState>,
    client_info: ClientInfo,
    base: BaseUrl,
) -> Result<Response, Problem> {
    let oidc = state.access.oidc().ok_or_else(no_provider)?;
    let (location, pending) = oidc.begin(&callback(&base)).await.map_err(|why| failed(&why))?;
    let sealed = state.orchestrator.seal(SealPurpose::Login, &pending.text(), LOGIN_LIFETIME);
    answer(&location, cookie(&sealed, LOGIN_LIFETIME.as_secs(), client_info.transport(&state.settings)))
}

/// What the provider sends along. The only query with unknown parameters: providers add some of their own, such as
/// `iss` and `session_state`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallbackQuery {
    /// To be exchanged for a token.
    code: Option<String>,
    /// Which login this is.
    state: Option<String>,
    /// Why there is no code.
    error: Option<String>,
    /// The same for people.
    error_description: Option<String>,
}

/// Complete an OpenID Connect login
///
/// The provider redirects here. Redirects to the web page, logged in or with a cookie that contains the error.
#[utoipa::path(
    get, path = "/v1/login/callback", tag = "operations", operation_id = "come_back",
    params(CallbackQuery),
    responses(
        (status = 303, description = "Redirect to the web page"),
        (status = 404, description = "`no_provider`", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
        QueryProblems
    )
)]
pub(crate) async fn finish(
    State(state): State<AppState>,
    Parameters(query): Parameters<CallbackQuery>,
    client_info: ClientInfo,
    base: BaseUrl,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let oidc = state.access.oidc().ok_or_else(no_provider)?;
    let transport = client_info.transport(&state.settings);
    let come_back = async {
        let kept = find(&headers).and_then(|sealed| state.orchestrator.unseal(SealPurpose::Login, sealed));
        let pending = kept.as_deref().and_then(PendingLogin::parse);
        let (pending, state_parameter) = check_login_state(pending, query.state)?;
        if let Some(error) = query.error {
            return Err(query.error_description.unwrap_or(error));
        }
        let code = query.code.ok_or("the provider sent neither a code nor an error")?;
        let key = oidc.finish(&callback(&base), &pending, &state_parameter, &code).await?;
        state.orchestrator.remember_oidc_user(&key.id, key.role).await.map_err(|error| error.to_string())?;
        Ok(key)
    };
    match come_back.await {
        Ok(key) => {
            let text = encode_account(&key);
            let sealed = state.orchestrator.begin_session(&text, OIDC_SESSION_LIFETIME);
            tracing::info!(target: "caisson_access", who = key.name, role = key.role.name(), "logged in with OpenID Connect");
            let mut response = answer("/", session_cookie(&sealed, transport))?;
            response.extensions_mut().insert(LoginOutcome::Done(Actor::from(&key)));
            if let Some(ended) = cookie("", 0, transport) {
                response.headers_mut().append(header::SET_COOKIE, ended);
            }
            Ok(response)
        }
        Err(why) => {
            // The text may come from anyone. The access log records the failure, rate limited.
            tracing::debug!(target: "caisson_access", why, "login with OpenID Connect failed");
            let mut response = answer("/", problem_cookie(&why, transport))?;
            response.extensions_mut().insert(LoginOutcome::Failed);
            Ok(response)
        }
    }
}

/// Accepts nothing from the callback, and shows none of it, unless this browser began the login: a link can contain
/// anything.
fn check_login_state(
    pending: Option<PendingLogin>,
    state_parameter: Option<String>,
) -> Result<(PendingLogin, String), String> {
    let state_parameter = state_parameter.unwrap_or_default();
    pending
        .filter(|pending| pending.state == state_parameter)
        .map(|pending| (pending, state_parameter))
        .ok_or_else(|| "the login was started in another browser or has expired; log in again".to_owned())
}

/// The reason for a failed login, which the page shows once. It is in a cookie, because anyone could craft a URL
/// with it.
fn problem_cookie(why: &str, transport: Transport) -> Option<HeaderValue> {
    let secure = if transport == Transport::Encrypted { "; Secure" } else { "" };
    let why: String = why.chars().take(MAX_REASON_CHARS).collect();
    let text = format!("{PROBLEM_COOKIE}={}; Path=/; Max-Age=60; SameSite=Lax{secure}", escaped(&why));
    HeaderValue::try_from(text).ok()
}

fn callback(base: &BaseUrl) -> String {
    format!("{}/v1/login/callback", base.0)
}

fn answer(location: &str, cookie: Option<HeaderValue>) -> Result<Response, Problem> {
    let location =
        HeaderValue::try_from(location).map_err(|_| Problem::internal("the provider leads nowhere"))?;
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// `SameSite=Lax`: the callback is a cross-site navigation, and the browser must send the cookie with it.
fn cookie(sealed: &str, lifetime_s: u64, transport: Transport) -> Option<HeaderValue> {
    let secure = if transport == Transport::Encrypted { "; Secure" } else { "" };
    let text =
        format!("{COOKIE}={sealed}; Path=/v1/login; Max-Age={lifetime_s}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::try_from(text).ok()
}

fn find(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, sealed)| sealed).next()
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn no_provider() -> Problem {
    let detail = "no OpenID Connect provider is configured; log in with an API key, or set [oidc] in the configuration";
    Problem::new(StatusCode::NOT_FOUND, "no_provider", detail)
}

fn failed(why: &str) -> Problem {
    Problem::new(
        StatusCode::BAD_GATEWAY,
        "provider_failed",
        format!("the OpenID Connect provider is not usable: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_requires_a_login_of_this_browser() {
        let pending = || PendingLogin::parse("state/nonce/verifier");
        assert!(check_login_state(pending(), Some("state".into())).is_ok());
        for (kept, state_parameter) in
            [(pending(), Some("other")), (pending(), None), (None, Some("state")), (None, None)]
        {
            let refused = check_login_state(kept, state_parameter.map(ToOwned::to_owned)).unwrap_err();
            assert!(refused.contains("started in another browser"), "{refused}");
        }
    }

    #[test]
    fn login_failure_cookie_is_escaped_and_bounded() {
        let cookie = problem_cookie("no; Domain=x\r\n é", Transport::Encrypted).unwrap();
        let text = cookie.to_str().unwrap();
        assert_eq!(
            text,
            "caisson_login_problem=no%3B%20Domain%3Dx%0D%0A%20%C3%A9; Path=/; Max-Age=60; SameSite=Lax; Secure"
        );
        let long = problem_cookie(&"x".repeat(5000), Transport::Plain).unwrap();
        assert!(long.len() < 400);
    }
}
