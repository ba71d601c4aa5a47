//! Chooses the image of a job: the requested one, else the one from the settings, else `default` if it exists, else
//! `host`.

use job::InvalidField;
use sandbox::Image;

use crate::core::Core;
use crate::error::OrchestratorError;

/// The agent's standard image.
const DEFAULT: &str = "default";
/// The pseudo image that uses the host's own programs.
const HOST: &str = "host";
/// How to create the `default` image.
const BUILD: &str = "build it with `caisson image build`";

/// An image, and a hint for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChosenImage {
    pub(crate) image: Image,
    pub(crate) hint: Option<String>,
}

pub(crate) async fn choose(core: &Core, asked: Option<&str>) -> Result<ChosenImage, OrchestratorError> {
    let settings = core.settings();
    let set = settings.default_image.as_deref();
    let known = known(core, asked.or(set)).await?;
    pick(asked, set, &known).map_err(|mut invalid| {
        let name = asked.or(set).unwrap_or(DEFAULT);
        if let Some(remedy) = core.backend.images().and_then(|images| images.remedy(name)) {
            invalid.problem += &format!("; {remedy}");
        }
        invalid.into()
    })
}

/// Like [`choose`], for a job that may wait. If the backend does not answer, accepts the requested image unchecked
/// and returns the backend's error with it; creating the sandbox checks it later.
pub(crate) async fn choose_or_assume(
    core: &Core,
    asked: Option<&str>,
) -> Result<(ChosenImage, Option<OrchestratorError>), OrchestratorError> {
    match choose(core, asked).await {
        Ok(image) => Ok((image, None)),
        Err(error) if error.is_backend_unavailable() => {
            let settings = core.settings();
            let name = asked.or(settings.default_image.as_deref()).unwrap_or(DEFAULT);
            Ok((chosen(name, None), Some(error)))
        }
        Err(error) => Err(error),
    }
}

/// A version that changes when an image's name gets new content; `None` if the backend cannot tell.
pub(crate) fn version(core: &Core, image: &Image) -> Option<String> {
    core.backend.images()?.version(image)
}

/// The images that the backend lists, plus the wanted one if the backend can provide it.
async fn known(core: &Core, wanted: Option<&str>) -> Result<Vec<String>, OrchestratorError> {
    let Some(images) = core.backend.images() else { return Ok(vec![HOST.to_owned()]) };
    let mut known = images.names().await?;
    if let Some(name) = wanted.filter(|name| !known.iter().any(|other| other == name))
        && images.may_have(name).await?
    {
        known.push(name.to_owned());
    }
    Ok(known)
}

fn pick(asked: Option<&str>, set: Option<&str>, known: &[String]) -> Result<ChosenImage, InvalidField> {
    let is_known = |name: &str| known.iter().any(|other| other == name);
    match (asked, set) {
        (Some(name), _) | (None, Some(name)) if is_known(name) => Ok(chosen(name, None)),
        (Some(name), _) => Err(unknown(name, known)),
        (None, Some(name)) => {
            let InvalidField { field, problem } = unknown(name, known);
            Err(InvalidField {
                field,
                problem: format!("{problem}; this server's setting jobs.image names it"),
            })
        }
        (None, None) if is_known(DEFAULT) => Ok(chosen(DEFAULT, None)),
        (None, None) if is_known(HOST) => Ok(chosen(
            HOST,
            Some(format!(
                "the image `{DEFAULT}` is not built yet, so this runs on `{HOST}`, with the programs of the server's \
                 own machine; {BUILD}"
            )),
        )),
        (None, None) => Err(unknown(DEFAULT, known)),
    }
}

fn chosen(name: &str, hint: Option<String>) -> ChosenImage {
    let image = if name == HOST { Image::Host } else { Image::Named(name.to_owned()) };
    ChosenImage { image, hint }
}

fn unknown(name: &str, known: &[String]) -> InvalidField {
    let available = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let remedy = if name == DEFAULT { format!("; {BUILD}") } else { String::new() };
    let shown: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
    let problem = format!("no image `{shown}`; available: {available}{remedy}");
    InvalidField { field: "image".into(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick_from(
        asked: Option<&str>,
        set: Option<&str>,
        known: &[&str],
    ) -> Result<ChosenImage, InvalidField> {
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        pick(asked, set, &known)
    }

    #[test]
    fn best_available_image_is_the_default() {
        let named = |name: &str| Image::Named(name.into());
        assert_eq!(
            pick_from(None, None, &["host", "default"]).unwrap(),
            ChosenImage { image: named("default"), hint: None }
        );
        let fallback = pick_from(None, None, &["host"]).unwrap();
        assert_eq!(fallback.image, Image::Host);
        assert!(fallback.hint.unwrap().contains("caisson image build"));
        assert_eq!(pick_from(None, Some("mine"), &["host", "default", "mine"]).unwrap().image, named("mine"));
        assert_eq!(pick_from(Some("host"), Some("mine"), &["host"]).unwrap().image, Image::Host);
    }

    #[test]
    fn unknown_image_error_lists_available_images() {
        let problem = pick_from(Some("nonsense"), None, &["host", "default"]).unwrap_err().problem;
        assert_eq!(problem, "no image `nonsense`; available: host, default");
        let problem = pick_from(Some("default"), None, &["host"]).unwrap_err().problem;
        assert!(problem.contains("caisson image build"), "{problem}");
        let problem = pick_from(None, Some("gone"), &["host"]).unwrap_err().problem;
        assert!(problem.contains("jobs.image"), "{problem}");
    }
}
