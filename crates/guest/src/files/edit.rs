//! Replaces a text in a file if it occurs exactly once.

use protocol::{FileError, FileErrorCode, FileReply};
use rustix::fs::{AtFlags, FileType, statat};

use crate::files::errors::{failed, refusal};
use crate::files::operations::{open_file, read_at_most};
use crate::files::resolve::{Parents, RelativePath, Root, Workspace};
use crate::files::write;

/// The largest file that can be edited.
const MAX_EDIT_BYTES: u64 = 16 * 1024 * 1024;

/// Replaces the only occurrence of `old` with `new`.
pub(crate) fn edit(workspace: &Workspace, path: &str, old: &str, new: &str) -> Result<FileReply, FileError> {
    let checked = RelativePath::parse(path, Root::Refused)?;
    refuse_symlink(workspace, &checked)?;
    let content = read_text(workspace, &checked)?;
    let edited = replace_once(&content, old, new)
        .map_err(|(code, why)| refusal(code, format!("editing `{checked}`: {why}")))?;
    write::write(workspace, path, edited.as_bytes(), None)
}

/// Refuses symbolic links, because writing would replace the link with a file.
fn refuse_symlink(workspace: &Workspace, path: &RelativePath) -> Result<(), FileError> {
    let place = workspace.place("editing", path, Parents::MustExist)?;
    let stat =
        statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("editing", path))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        let message = format!("editing `{path}`: it is a symbolic link; edit the file that it points to");
        return Err(refusal(FileErrorCode::Other, message));
    }
    Ok(())
}

fn read_text(workspace: &Workspace, path: &RelativePath) -> Result<String, FileError> {
    let (file, stat) = open_file(workspace, path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > MAX_EDIT_BYTES {
        let message =
            format!("editing `{path}`: it has {size} bytes; at most {MAX_EDIT_BYTES} can be edited");
        return Err(refusal(FileErrorCode::TooLarge, message));
    }
    let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
    let count = read_at_most(&file, &mut content, 0).map_err(failed("editing", path))?;
    content.truncate(count);
    let not_text = |_| refusal(FileErrorCode::NotText, format!("editing `{path}`: it is not UTF-8 text"));
    String::from_utf8(content).map_err(not_text)
}

fn replace_once(content: &str, old: &str, new: &str) -> Result<String, (FileErrorCode, String)> {
    if old.is_empty() {
        return Err((
            FileErrorCode::NoMatch,
            "the text to replace is empty; give the text that is there now".to_owned(),
        ));
    }
    match occurrences(content, old) {
        0 => Err((
            FileErrorCode::NoMatch,
            "the text to replace is not in the file (0 matches); read the file and copy it exactly"
                .to_owned(),
        )),
        1 => Ok(content.replacen(old, new, 1)),
        count => Err((
            FileErrorCode::ManyMatches,
            format!(
                "the text to replace is in the file {count} times; add lines around it until it is unique"
            ),
        )),
    }
}

/// Counts the occurrences of a text, including overlapping ones.
fn occurrences(content: &str, wanted: &str) -> usize {
    let mut count = 0;
    let mut from = 0;
    let step = wanted.chars().next().map_or(1, char::len_utf8);
    while let Some(found) = content.get(from..).and_then(|rest| rest.find(wanted)) {
        count += 1;
        from += found + step;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_unique_text_is_replaced() {
        assert_eq!(replace_once("one two three", "two", "2").unwrap(), "one 2 three");
        assert_eq!(replace_once("a", "b", "c").unwrap_err().0, FileErrorCode::NoMatch);
        assert_eq!(replace_once("a", "", "c").unwrap_err().0, FileErrorCode::NoMatch);
        let (code, message) = replace_once("x x x", "x", "y").unwrap_err();
        assert_eq!(code, FileErrorCode::ManyMatches);
        assert!(message.contains("3 times"), "{message}");
    }

    #[test]
    fn occurrences_that_overlap_are_not_unique() {
        assert_eq!(occurrences("ééé", "éé"), 2);
    }
}
