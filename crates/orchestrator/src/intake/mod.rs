//! Takes jobs in: submissions, drafts and their uploads, bare sandboxes, images and models.

pub(crate) mod bare_sandbox;
pub(crate) mod form_upload;
pub(crate) mod jobs;
pub(crate) mod model_choice;
pub(crate) mod models;
pub(crate) mod result_files;
pub(crate) mod schema;
pub(crate) mod submission;
pub(crate) mod submit;
pub(crate) mod unpack;
pub(crate) mod uploads;
pub(crate) mod zip_entry_count;
