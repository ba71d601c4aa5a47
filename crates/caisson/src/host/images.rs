//! The images of this host and their states.

use anyhow::Result;
use image::{ImageName, ImageStore, Recipe, StoredImage};
use sandbox::{Check, CheckState};
use serde_json::{Value, json};

use crate::config::Config;
use crate::output::size_text;

/// The state of an image whose recipe has changed since the build.
pub(crate) const CHANGED: &str = "recipe has changed";

/// The images, the hash of the current recipe, and unfinished builds and imports.
pub(crate) fn listing(config: &Config) -> Result<Value> {
    let store = ImageStore::new(&config.images);
    let recipe = Recipe::embedded().hash();
    let images: Vec<Value> = store.list()?.iter().map(|image| document(image, &recipe)).collect();
    Ok(json!({"recipe": recipe, "images": images, "unfinished": store.unfinished()}))
}

/// The state of the default image, for `doctor`.
pub(super) fn check(config: &Config) -> Check {
    let image = ImageStore::new(&config.images).find(&ImageName::default_image());
    let (state, found) = match &image {
        None => (CheckState::Weaker, "not built; jobs use the programs of this machine (`host`)".to_owned()),
        Some(image) => {
            let state = state_of(image, &Recipe::embedded().hash());
            let size = image.record.as_ref().map(|record| format!(", {}", size_text(record.bytes)));
            let check = if state == CHANGED { CheckState::Weaker } else { CheckState::Good };
            (check, format!("{state}{}", size.unwrap_or_default()))
        }
    };
    let remedy = (state != CheckState::Good).then(|| "caisson image build".to_owned());
    Check { name: "default image".into(), state, found, remedy }
}

/// Whether an image matches its current recipe. Imported images and images with another recipe are just present.
fn state_of(image: &StoredImage, recipe: &str) -> &'static str {
    let built_from = image.record.as_ref().and_then(|record| record.recipe.as_deref());
    match built_from {
        Some(hash) if hash == recipe => "up to date",
        Some(_) if image.name == ImageName::default_image() => CHANGED,
        _ => "ready",
    }
}

fn document(image: &StoredImage, recipe: &str) -> Value {
    json!({
        "name": image.name,
        "root": image.root,
        "state": state_of(image, recipe),
        "record": image.record,
    })
}
