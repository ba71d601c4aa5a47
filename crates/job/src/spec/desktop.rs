//! The desktop settings of a job.

use std::time::Duration;

use protocol::Recording;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::invalid::InvalidField;

/// Allowed width and height of the screen in pixels.
const WIDTHS: std::ops::RangeInclusive<u16> = 320..=3840;

const HEIGHTS: std::ops::RangeInclusive<u16> = 240..=2160;

/// The screen of a job, as a caller writes it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDesktop {
    /// Pixels, 320 to 3840; 1280 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u16>,
    /// Pixels, 240 to 2160; 800 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<u16>,
    /// Records it into `.caisson/desktop.apng` of the workspace, a download of the finished job. Not recorded when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Recording>,
}

/// Validated desktop settings of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesktopSettings {
    pub width: u16,
    pub height: u16,
    /// The desktop is stopped after it was unused for this long.
    pub idle: Duration,
    /// Whether `DISPLAY` is set for the programs of every step, so that they find the desktop once it runs.
    #[serde(default)]
    pub is_announced: bool,
    /// `None` if the desktop is not recorded.
    #[serde(default)]
    pub recording: Option<Recording>,
}

impl Default for DesktopSettings {
    fn default() -> Self {
        Self {
            width: 1280,
            height: 800,
            idle: Duration::from_secs(600),
            is_announced: false,
            recording: None,
        }
    }
}

impl NewDesktop {
    /// Validates the size. Fields that are not set are taken from `default`.
    pub fn check(self, default: DesktopSettings) -> Result<DesktopSettings, InvalidField> {
        let pick = |field: &str, asked: Option<u16>, default: u16, allowed: std::ops::RangeInclusive<u16>| {
            let value = asked.unwrap_or(default);
            if allowed.contains(&value) {
                return Ok(value);
            }
            let problem = format!("{value} is not between {} and {} pixels", allowed.start(), allowed.end());
            Err(InvalidField { field: format!("desktop.{field}"), problem })
        };
        Ok(DesktopSettings {
            width: pick("width", self.width, default.width, WIDTHS)?,
            height: pick("height", self.height, default.height, HEIGHTS)?,
            idle: default.idle,
            is_announced: true,
            recording: self.record.or(default.recording),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_small_screen_is_refused_by_field_name() {
        let asked = NewDesktop { width: Some(10), ..NewDesktop::default() };
        let error = asked.check(DesktopSettings::default()).unwrap_err();
        assert_eq!(error.to_string(), "desktop.width: 10 is not between 320 and 3840 pixels");
    }
}
