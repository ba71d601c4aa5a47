//! A refusal as an HTTP response: text for programs, a page for browsers.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::ext::ReasonPhrase;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response};

use super::response_body::ResponseBody;
use crate::refusal::Refusal;

const REASON_HEADER: HeaderName = HeaderName::from_static("x-caisson-reason");

/// The form in which a client can show a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RefusalForm {
    Text,
    /// A page about this host.
    Page(String),
}

impl RefusalForm {
    /// A page for browsers, unless the request opens a tunnel: browsers do not show the response then.
    pub(crate) fn of<B>(request: &Request<B>, host: Option<&str>) -> Self {
        if request.method() != Method::CONNECT && accepts_page(request.headers()) {
            Self::Page(host.or_else(|| request.uri().host()).unwrap_or_default().to_owned())
        } else {
            Self::Text
        }
    }
}

fn accepts_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
}

/// The response of an HTTP server.
pub(crate) fn refusal_response(refusal: &Refusal, form: &RefusalForm) -> Response<ResponseBody> {
    let (text, kind) = match form {
        RefusalForm::Text => (refusal.explanation(), "text/plain; charset=utf-8"),
        RefusalForm::Page(host) => (page(refusal, host), "text/html; charset=utf-8"),
    };
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = refusal.code.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if *form != RefusalForm::Text {
        // The page appears as one of the host, and must not stay after the host was allowed.
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
        headers.insert(CONTENT_SECURITY_POLICY, policy);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    headers.insert(REASON_HEADER, HeaderValue::from_static(refusal.code.as_str()));
    // For CONNECT, most clients display only the status line.
    let phrase = format!("{} ({})", refusal.reason, refusal.code.as_str());
    let phrase: String = phrase.chars().filter(|c| *c == ' ' || c.is_ascii_graphic()).collect();
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        response.extensions_mut().insert(phrase);
    }
    response
}

fn page(refusal: &Refusal, host: &str) -> String {
    let what = if refusal.code.is_policy() { "refused" } else { "failed" };
    let host = escape(host);
    let line = |title: &str, text: &str| match text {
        "" => String::new(),
        text => format!("<dt>{title}</dt><dd>{}</dd>\n", escape(text)),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{host}: connection {what}</title>\n\
         <style>body{{font:16px/1.5 sans-serif;max-width:44em;margin:3em auto;padding:0 1em}}dt{{color:#666}}\
         dd{{margin:0 0 1em;overflow-wrap:anywhere}}</style></head>\n<body><h1>Connection {what}: {host}</h1>\n<dl>\n\
         {}{}{}{}</dl>\n<p>Caisson, egress policy of this job</p></body></html>\n",
        line("What happened", &refusal.reason),
        line("Reason", refusal.code.as_str()),
        line("Rule", &refusal.rule),
        line("To allow it", &refusal.remedy),
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The complete response as text, for a connection without an HTTP server.
pub(crate) fn serialized_refusal(refusal: &Refusal) -> String {
    let body = refusal.explanation();
    format!(
        "HTTP/1.1 {}\r\n{CONTENT_TYPE}: text/plain; charset=utf-8\r\n{REASON_HEADER}: {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        refusal.code.status(),
        refusal.code.as_str(),
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::ReasonCode;

    fn form(method: &str, accept: &str) -> RefusalForm {
        let uri = if method == "CONNECT" { "a.example:443" } else { "http://a.example/x" };
        let request = Request::builder().method(method).uri(uri).header(ACCEPT, accept).body(()).unwrap();
        RefusalForm::of(&request, None)
    }

    #[test]
    fn only_browsers_get_a_page() {
        let page = RefusalForm::Page("a.example".into());
        assert_eq!(form("GET", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"), page);
        assert_eq!(form("POST", "application/json, Text/HTML; q=0.5"), page);
        for (method, accept) in [("GET", "*/*"), ("GET", "application/json"), ("CONNECT", "text/html")] {
            assert_eq!(form(method, accept), RefusalForm::Text, "{method} {accept}");
        }
    }

    #[test]
    fn page_names_host_reason_and_remedy_and_runs_nothing() {
        let refusal = Refusal {
            code: ReasonCode::NotInList,
            rule: String::new(),
            reason: "<script>alert('x')</script> & more".into(),
            remedy: r#"write "egress": {"allow": ["a.example"]}"#.into(),
        };
        let text = page(&refusal, "<b>a.example</b>");
        for part in [
            "<h1>Connection refused: &lt;b&gt;a.example&lt;/b&gt;</h1>",
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; more",
            "<dt>Reason</dt><dd>not_in_list</dd>",
            "<dt>To allow it</dt><dd>write &quot;egress&quot;: {&quot;allow&quot;: [&quot;a.example&quot;]}</dd>",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("<script") && !text.contains("<dt>Rule"), "{text}");
        let response = refusal_response(&refusal, &RefusalForm::Page("a.example".into()));
        assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(response.headers().contains_key(CONTENT_SECURITY_POLICY));
    }
}
