//! What a notebook cell has shown beside text, as it is logged.

use protocol::{Display, DisplayKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Something that a cell has shown beside text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shown {
    /// `result`, `data`, `update`, `clear` or `error`.
    #[schema(value_type = String, example = "result")]
    #[serde(rename = "display")]
    pub kind: DisplayKind,
    /// For who reads text alone.
    #[serde(default)]
    pub text: String,
    /// The same thing in several forms, by media type; binary ones are base64.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub data: Map<String, Value>,
    /// What the kernel says about the forms.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// Names it for updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    /// The kernel's number of the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_count: Option<u64>,
    /// The exception, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ShownError>,
}

/// An exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownError {
    /// Its type.
    pub name: String,
    /// What it says.
    pub message: String,
    /// As the kernel prints it, colours included.
    pub traceback: Vec<String>,
}

impl From<Display> for Shown {
    fn from(display: Display) -> Self {
        Self {
            text: display.text(),
            kind: display.kind,
            data: display.data,
            metadata: display.metadata,
            display_id: display.display_id,
            execution_count: display.execution_count,
            error: display.error.map(|error| ShownError {
                name: error.name,
                message: error.message,
                traceback: error.traceback,
            }),
        }
    }
}
