//! Sends files with headers that stop browsers from rendering them as a page, whole or by range, without reading a
//! whole file into memory.

use std::io::SeekFrom;
use std::path::Path;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use crate::guard::JOB_CONTENT_CSP;
use crate::problem::Problem;

const CHUNK_BYTES: usize = 64 * 1024;

/// The part of a file that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileRange {
    Whole,
    /// First and last byte, inclusive, counted from 0.
    Range {
        first: u64,
        last: u64,
    },
    /// The range lies outside the file.
    Unsatisfiable,
}

impl FileRange {
    /// Parses a `Range` header. As the standard requires, an unsupported form means the whole file.
    pub(crate) fn parse(range: Option<&str>, size: u64) -> Self {
        let Some((first, last)) = range.and_then(|text| text.trim().strip_prefix("bytes=")?.split_once('-'))
        else {
            return Self::Whole;
        };
        let (first, last) = (first.trim(), last.trim());
        match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if last < first => Self::Whole,
            (Ok(first), Ok(last)) if first < size => Self::Range { first, last: last.min(size - 1) },
            (Ok(first), Err(_)) if last.is_empty() && first < size => Self::Range { first, last: size - 1 },
            (Ok(_), Ok(_)) => Self::Unsatisfiable,
            (Ok(_), Err(_)) if last.is_empty() => Self::Unsatisfiable,
            (Err(_), Ok(count)) if first.is_empty() && count > 0 && size > 0 => {
                Self::Range { first: size.saturating_sub(count), last: size - 1 }
            }
            (Err(_), Ok(_)) if first.is_empty() => Self::Unsatisfiable,
            _ => Self::Whole,
        }
    }
}

/// The response headers of a file.
pub(crate) struct Description<'a> {
    pub(crate) media_type: &'static str,
    /// The file name for `Content-Disposition: attachment`. `None` displays the file inline.
    pub(crate) attachment_name: Option<&'a str>,
    /// The `ETag`, without quotes. It changes with the content.
    pub(crate) tag: Option<&'a str>,
}

/// Sends a file from the server's disk, or the range of it that the request asks for.
pub(crate) async fn send_file(
    path: &Path,
    description: Description<'_>,
    request: &HeaderMap,
) -> Result<Response, Problem> {
    let mut file = File::open(path).await.map_err(|error| unreadable(&error))?;
    let size = file.metadata().await.map_err(|error| unreadable(&error))?.len();
    let tag = description.tag.map(|tag| format!("\"{tag}\""));
    let mut response = Response::new(Body::empty());
    set_content_headers(response.headers_mut(), &description);
    if let Some(tag) = tag.as_deref().and_then(|tag| HeaderValue::try_from(tag).ok()) {
        response.headers_mut().insert(header::ETAG, tag);
        response.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    }
    if matches_tag(request, header::IF_NONE_MATCH, tag.as_deref()) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    let is_same =
        !request.contains_key(header::IF_RANGE) || matches_tag(request, header::IF_RANGE, tag.as_deref());
    let range =
        request.get(header::RANGE).and_then(|range| range.to_str().ok()).filter(|_| tag.is_some() && is_same);
    let (first, length) = match FileRange::parse(range, size) {
        FileRange::Whole => (0, size),
        FileRange::Range { first, last } => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            set(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes {first}-{last}/{size}"));
            (first, last - first + 1)
        }
        FileRange::Unsatisfiable => return Ok(out_of_range(size)),
    };
    if first > 0 {
        file.seek(SeekFrom::Start(first)).await.map_err(|error| unreadable(&error))?;
    }
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    // A log may grow while it is sent. Send exactly the announced length.
    *response.body_mut() = Body::from_stream(ReaderStream::with_capacity(file.take(length), CHUNK_BYTES));
    Ok(response)
}

/// Sets the headers that stop a browser from rendering job content as a page.
pub(crate) fn set_content_headers(headers: &mut HeaderMap, description: &Description<'_>) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(description.media_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, JOB_CONTENT_CSP);
    if let Some(name) = description.attachment_name {
        set(headers, header::CONTENT_DISPOSITION, &attachment(name));
    }
}

fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

/// A `Content-Disposition` value with an ASCII file name, and also a UTF-8 one if the name needs it.
pub(crate) fn attachment(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let plain: String = name
        .chars()
        .map(|letter| {
            if letter.is_ascii_graphic() && !matches!(letter, '"' | '\\' | '%' | '/') { letter } else { '_' }
        })
        .collect();
    if name.bytes().all(is_plain) {
        return format!("attachment; filename=\"{plain}\"");
    }
    let encoded: String = name
        .bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

fn matches_tag(request: &HeaderMap, name: header::HeaderName, tag: Option<&str>) -> bool {
    let (Some(sent), Some(tag)) = (request.get(name).and_then(|value| value.to_str().ok()), tag) else {
        return false;
    };
    sent.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == tag || one == "*")
}

fn out_of_range(size: u64) -> Response {
    let detail = format!("the range is outside of the file, which has {size} bytes");
    let mut response =
        Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", detail).into_response();
    set(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
    response
}

fn unreadable(error: &std::io::Error) -> Problem {
    tracing::error!(%error, "a file of a job cannot be read");
    Problem::internal("the file cannot be read; see the server log")
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    const ZIP: Description<'static> =
        Description { media_type: "application/zip", attachment_name: Some("output.zip"), tag: Some("abc") };

    async fn send(pairs: &[(header::HeaderName, &str)]) -> (Response<()>, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output.zip");
        std::fs::write(&path, "0123456789").unwrap();
        let mut request = HeaderMap::new();
        for (name, value) in pairs {
            request.insert(name.clone(), HeaderValue::try_from(*value).unwrap());
        }
        let (parts, body) = send_file(&path, ZIP, &request).await.unwrap().into_parts();
        let text = String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap();
        (Response::from_parts(parts, ()), text)
    }

    #[test]
    fn ranges_are_understood() {
        let table = [
            (None, FileRange::Whole),
            (Some("bytes=0-3"), FileRange::Range { first: 0, last: 3 }),
            (Some("bytes=4-"), FileRange::Range { first: 4, last: 9 }),
            (Some("bytes=-3"), FileRange::Range { first: 7, last: 9 }),
            (Some("bytes=-30"), FileRange::Range { first: 0, last: 9 }),
            (Some("bytes=8-100"), FileRange::Range { first: 8, last: 9 }),
            (Some("bytes=10-"), FileRange::Unsatisfiable),
            (Some("bytes=10-12"), FileRange::Unsatisfiable),
            (Some("bytes=-0"), FileRange::Unsatisfiable),
            (Some("bytes=3-1"), FileRange::Whole),
            (Some("bytes=0-1,4-5"), FileRange::Whole),
            (Some("lines=1-2"), FileRange::Whole),
            (Some("bytes=x-y"), FileRange::Whole),
            (Some("bytes=99999999999999999999-"), FileRange::Whole),
        ];
        for (range, part) in table {
            assert_eq!(FileRange::parse(range, 10), part, "{range:?}");
        }
        assert_eq!(FileRange::parse(Some("bytes=0-"), 0), FileRange::Unsatisfiable);
    }

    #[tokio::test]
    async fn whole_file_has_attachment_length_and_etag_headers() {
        let (response, text) = send(&[]).await;
        assert_eq!((response.status().as_u16(), text.as_str()), (200, "0123456789"));
        let headers = response.headers();
        assert_eq!(headers[header::CONTENT_LENGTH], "10");
        assert_eq!(headers[header::ETAG], "\"abc\"");
        assert_eq!(headers[header::CONTENT_DISPOSITION], "attachment; filename=\"output.zip\"");
        assert_eq!(headers[header::CONTENT_SECURITY_POLICY], "sandbox; default-src 'none'");
    }

    #[tokio::test]
    async fn range_request_resumes_download() {
        let (response, text) = send(&[(header::RANGE, "bytes=4-")]).await;
        assert_eq!((response.status().as_u16(), text.as_str()), (206, "456789"));
        assert_eq!(response.headers()[header::CONTENT_RANGE], "bytes 4-9/10");
        let (response, _) = send(&[(header::RANGE, "bytes=4-"), (header::IF_RANGE, "\"other\"")]).await;
        assert_eq!(response.status().as_u16(), 200);
        let (response, _) = send(&[(header::RANGE, "bytes=10-")]).await;
        assert_eq!(response.status().as_u16(), 416);
        assert_eq!(response.headers()[header::CONTENT_RANGE], "bytes */10");
    }

    #[tokio::test]
    async fn matching_etag_returns_not_modified() {
        let (response, text) = send(&[(header::IF_NONE_MATCH, "\"x\", W/\"abc\"")]).await;
        assert_eq!((response.status().as_u16(), text.as_str()), (304, ""));
    }

    #[test]
    fn file_names_cannot_inject_headers() {
        assert_eq!(attachment("a.txt"), "attachment; filename=\"a.txt\"");
        assert_eq!(attachment("a\"\r\nb"), "attachment; filename=\"a___b\"; filename*=UTF-8''a%22%0D%0Ab");
        assert_eq!(attachment("ä 1"), "attachment; filename=\"__1\"; filename*=UTF-8''%C3%A4%201");
    }
}
