//! The files of a job. Downloads are sent as attachments; uploads and large downloads are streamed.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use job::JobId;
use orchestrator::{FileContent, FileListing, OrchestratorError};
use protocol::FileErrorCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::extract::{AppState, FilePath, JobPath, JsonBody, OnBehalfOfCaller, Parameters, WorkspacePath};
use crate::openapi::{BodyProblems, FileProblems, QueryProblems, SandboxProblems};
use crate::problem::Problem;
use crate::streams::{Description, set_content_headers};

/// The longest target of a symbolic link.
const MAX_TARGET_BYTES: usize = 4095;

/// How to list a directory.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadQuery {
    /// Directory levels to list; default 1.
    #[param(minimum = 1, maximum = 100)]
    depth: Option<u32>,
}

impl ReadQuery {
    fn depth(&self) -> Result<u32, Problem> {
        match self.depth.unwrap_or(1) {
            depth @ 1..=100 => Ok(depth),
            depth => {
                let detail = format!("{depth} is not between 1 and 100");
                Err(Problem::bad_request("invalid_query", detail).with_field("depth"))
            }
        }
    }
}

/// List the workspace
#[utoipa::path(
    get, path = "/files", tag = "files", operation_id = "list_files",
    params(("id" = JobId, Path, description = "The job"), ReadQuery),
    responses((status = 200, description = "The listing", body = FileListing), FileProblems, QueryProblems)
)]
pub(crate) async fn list_root(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    Parameters(query): Parameters<ReadQuery>,
) -> Result<Json<FileListing>, Problem> {
    Ok(Json(state.orchestrator.list_files(id, "", query.depth()?).await?))
}

/// Read a file or list a directory
///
/// Returns a file as an attachment, and a directory as a JSON listing.
#[utoipa::path(
    get, path = "/files/{*path}", tag = "files", operation_id = "read_file",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path in the workspace; may contain slashes", example = "src/main.py"),
        ReadQuery,
    ),
    responses(
        (status = 200, description = "The content, or the listing of a directory", content(
            (String = "application/octet-stream"),
            (FileListing = "application/json"),
        )),
        FileProblems,
        QueryProblems
    )
)]
pub(crate) async fn read(
    State(state): State<AppState>,
    FilePath { job, path }: FilePath,
    Parameters(query): Parameters<ReadQuery>,
) -> Result<Response, Problem> {
    let depth = query.depth()?;
    if let WorkspacePath::Inside(path) = &path {
        match state.orchestrator.read_file(job, path).await {
            Ok(content) => return send(path, content).await,
            Err(OrchestratorError::File(error)) if error.code == FileErrorCode::IsDirectory => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Json(state.orchestrator.list_files(job, path.as_str(), depth).await?).into_response())
}

/// Files up to this size are read completely before the response begins. If such a file is being written,
/// `Content-Length` still matches what was read.
const WHOLE_BYTES: u64 = 256 * 1024;

async fn send(path: &str, content: FileContent) -> Result<Response, Problem> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let (body, length) = if content.size <= WHOLE_BYTES {
        let parts: Vec<Bytes> = content.chunks.try_collect().await?;
        let whole = parts.concat();
        let length = whole.len() as u64;
        (Body::from(whole), length)
    } else {
        (Body::from_stream(content.chunks), content.size)
    };
    let mut response = body.into_response();
    let description =
        Description { media_type: "application/octet-stream", attachment_name: Some(name), tag: None };
    set_content_headers(response.headers_mut(), &description);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

/// Read the original version of a file
///
/// A file as it was uploaded with the job. Does not include a repository that the job cloned.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/start/{*path}", tag = "files", operation_id = "read_start_file",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path in the workspace; may contain slashes", example = "src/main.py"),
    ),
    responses(
        (status = 200, description = "The content", body = String, content_type = "application/octet-stream"),
        FileProblems
    )
)]
pub(crate) async fn read_start(
    State(state): State<AppState>,
    FilePath { job, path }: FilePath,
) -> Result<Response, Problem> {
    let path = path.into_file()?;
    send(&path, state.orchestrator.read_start_file(job, &path).await?).await
}

/// How to write a file.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteQuery {
    /// Permission bits in octal, such as `755`.
    #[param(pattern = "^[0-7]{1,3}$")]
    mode: Option<String>,
    /// What to create; default a file.
    #[serde(default)]
    #[param(inline)]
    kind: WriteKind,
}

/// What a write makes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WriteKind {
    /// A file with this content.
    #[default]
    File,
    /// A directory; there is no body.
    Directory,
    /// A symbolic link; the body is where it points.
    Symlink,
}

impl WriteQuery {
    fn mode(&self) -> Result<Option<u32>, Problem> {
        let Some(text) = &self.mode else { return Ok(None) };
        let is_octal =
            (1..=3).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(text, 8) {
            Ok(mode) if is_octal => Ok(Some(mode)),
            _ => {
                let detail = format!("`{}` is not an octal number from 0 to 777", text.escape_debug());
                Err(Problem::bad_request("invalid_query", detail).with_field("mode"))
            }
        }
    }
}

/// A file that was written or moved.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileAnswer {
    /// Path in the workspace.
    path: String,
    /// Number of bytes written.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Write a file
///
/// The body is the content, of any type, up to the size of the sandbox's disk. The write is atomic and creates missing parent
/// directories. `kind=directory` creates a directory; `kind=symlink` creates a symbolic link to the path in the body. A draft
/// accepts no links.
#[utoipa::path(
    put, path = "/files/{*path}", tag = "files", operation_id = "write_file",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path in the workspace; may contain slashes", example = "src/main.py"),
        WriteQuery,
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "The content"),
    responses(
        (status = 200, description = "Written", body = FileAnswer),
        FileProblems,
        QueryProblems,
        SandboxProblems
    )
)]
pub(crate) async fn write(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    FilePath { job, path }: FilePath,
    Parameters(query): Parameters<WriteQuery>,
    request: Request,
) -> Result<Json<FileAnswer>, Problem> {
    let mode = query.mode()?;
    let path = path.into_file()?;
    let body = request.into_body();
    let bytes = match query.kind {
        WriteKind::File => {
            let body = body.into_data_stream().map_err(std::io::Error::other);
            Some(orchestrator.write_file(job, &path, mode, Box::pin(body)).await?)
        }
        WriteKind::Directory => {
            read_text(body, 0, "a directory has no content").await?;
            orchestrator.make_directory(job, &path).await?;
            None
        }
        WriteKind::Symlink => {
            let invalid = "the body must be the target of the symlink, 1 to 4,095 bytes without NUL";
            let target = read_text(body, MAX_TARGET_BYTES, invalid).await?;
            if target.is_empty() || target.contains('\0') {
                return Err(Problem::bad_request("invalid_body", invalid));
            }
            orchestrator.make_link(job, &path, &target).await?;
            None
        }
    };
    Ok(Json(FileAnswer { path, bytes }))
}

/// Reads a short text body.
async fn read_text(body: Body, most: usize, problem: &str) -> Result<String, Problem> {
    let refused = || Problem::bad_request("invalid_body", problem);
    let bytes = axum::body::to_bytes(body, most).await.map_err(|_| refused())?;
    String::from_utf8(bytes.into()).map_err(|_| refused())
}

/// How to delete.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteQuery {
    /// Also delete a directory and everything in it.
    #[serde(default)]
    recursive: bool,
}

/// Delete a file or directory
#[utoipa::path(
    delete, path = "/files/{*path}", tag = "files", operation_id = "delete_file",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path in the workspace; may contain slashes", example = "src/main.py"),
        DeleteQuery,
    ),
    responses((status = 204, description = "Deleted"), FileProblems, QueryProblems, SandboxProblems)
)]
pub(crate) async fn delete(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    FilePath { job, path }: FilePath,
    Parameters(query): Parameters<DeleteQuery>,
) -> Result<StatusCode, Problem> {
    orchestrator.delete_file(job, &path.into_file()?, query.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The new location of a file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveRequest {
    /// The new path in the workspace; must not exist.
    #[schema(example = "src/lib.py")]
    move_to: String,
}

/// Move a file or directory
#[utoipa::path(
    post, path = "/files/{*path}", tag = "files", operation_id = "move_file",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path in the workspace; may contain slashes", example = "src/main.py"),
    ),
    request_body = MoveRequest,
    responses(
        (status = 200, description = "Moved", body = FileAnswer),
        FileProblems,
        BodyProblems,
        SandboxProblems
    )
)]
pub(crate) async fn relocate(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    FilePath { job, path }: FilePath,
    JsonBody(request): JsonBody<MoveRequest>,
) -> Result<Json<FileAnswer>, Problem> {
    let from = path.into_file()?;
    let to = WorkspacePath::parse(&request.move_to)
        .and_then(WorkspacePath::into_file)
        .map_err(|problem| problem.with_field("move_to"))?;
    orchestrator.move_file(job, &from, &to).await?;
    Ok(Json(FileAnswer { path: to, bytes: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_mode_are_validated() {
        assert_eq!(ReadQuery::default().depth().unwrap(), 1);
        assert!(ReadQuery { depth: Some(0) }.depth().is_err());
        assert!(ReadQuery { depth: Some(101) }.depth().is_err());
        let mode = |text: &str| WriteQuery { mode: Some(text.into()), ..WriteQuery::default() }.mode();
        assert_eq!(mode("755").unwrap(), Some(0o755));
        for bad in ["888", "1777", "-1", "rwx", ""] {
            assert_eq!(mode(bad).unwrap_err().field(), Some("mode"), "{bad}");
        }
    }

    fn content(size: u64, bytes: &'static str) -> FileContent {
        let chunks = futures::stream::iter([Ok(Bytes::from_static(bytes.as_bytes()))]);
        FileContent { size, modified_ms: 0, chunks: Box::pin(chunks) }
    }

    #[tokio::test]
    async fn html_of_a_job_is_sent_as_a_download() {
        let response = send("site/index.html", content(4, "<hr>")).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/octet-stream");
        assert_eq!(response.headers()[header::CONTENT_DISPOSITION], "attachment; filename=\"index.html\"");
        assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], "sandbox; default-src 'none'");
        assert_eq!(response.headers()[header::CONTENT_LENGTH], "4");
    }

    #[tokio::test]
    async fn shrinking_file_has_a_matching_content_length() {
        let response = send("count", content(4, "")).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_LENGTH], "0");
        let large = send("large", content(WHOLE_BYTES + 1, "as it comes")).await.unwrap();
        assert_eq!(large.headers()[header::CONTENT_LENGTH], (WHOLE_BYTES + 1).to_string());
    }
}
