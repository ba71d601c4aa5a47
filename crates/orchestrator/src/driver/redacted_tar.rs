//! Redacts the values of secrets in a tar stream as it passes: in contents, and in the names and link targets of its
//! headers, whose checksums are recomputed. Redaction keeps the length, so that nothing else moves.

use bytes::{Bytes, BytesMut};
use egress::{RedactedStream, Redactor};
use tar::{EntryType, Header};

/// Block size of a tar stream.
const BLOCK: usize = 512;
/// The text fields of a header: name, link target, user, group, and name prefix.
const FIELDS: [std::ops::Range<usize>; 5] = [0..100, 157..257, 265..297, 297..329, 345..500];
/// A partial secret at the end of a name that is shorter than this is harmless.
const MIN_REVEALING_BYTES: usize = 8;

pub(super) struct RedactedTar {
    redactor: Redactor,
    state: TarState,
}

/// What the stream contains next.
enum TarState {
    /// A header, as far as it has arrived.
    Header(BytesMut),
    /// The content of an entry, in whole blocks.
    Content { left: u64, cover: RedactedStream },
    /// Something this module does not understand; the reader of the archive reports it.
    Unknown(RedactedStream),
}

impl RedactedTar {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self { redactor, state: TarState::Header(BytesMut::new()) }
    }

    pub(super) fn redact_name(&self, name: &str) -> String {
        self.redactor.redact_text(name)
    }

    /// Takes the next piece and returns what is already redacted.
    pub(super) fn push(&mut self, mut piece: Bytes) -> Bytes {
        if self.redactor.is_idle() {
            return piece;
        }
        let mut shown = BytesMut::with_capacity(piece.len() + BLOCK);
        while !piece.is_empty() {
            match &mut self.state {
                TarState::Header(block) => {
                    let taken = piece.split_to((BLOCK - block.len()).min(piece.len()));
                    block.extend_from_slice(&taken);
                    if block.len() == BLOCK {
                        let mut block = std::mem::take(block);
                        self.state = pass_header(&mut block, &self.redactor);
                        shown.extend_from_slice(&block);
                    }
                }
                TarState::Content { left, cover } => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                    shown.extend_from_slice(&cover.push(piece.split_to(taken)));
                    *left -= taken as u64;
                    if *left == 0 {
                        shown.extend_from_slice(&cover.finish());
                        self.state = TarState::Header(BytesMut::new());
                    }
                }
                TarState::Unknown(cover) => shown.extend_from_slice(&cover.push(std::mem::take(&mut piece))),
            }
        }
        shown.freeze()
    }

    /// The rest, at the end of the stream.
    pub(super) fn finish(&mut self) -> Bytes {
        match std::mem::replace(&mut self.state, TarState::Header(BytesMut::new())) {
            TarState::Header(block) => block.freeze(),
            TarState::Content { mut cover, .. } | TarState::Unknown(mut cover) => cover.finish(),
        }
    }
}

/// Redacts the text fields of a header; returns what follows it.
fn pass_header(block: &mut [u8], redactor: &Redactor) -> TarState {
    let mut found = 0;
    for field in FIELDS {
        let words = &mut block[field];
        found += redactor.cover(words);
        // A name that is too long for its field is truncated there, and with it possibly a value.
        let cut = if words.contains(&0) { 0 } else { redactor.unfinished(words) };
        if cut >= MIN_REVEALING_BYTES {
            let from = words.len() - cut;
            words[from..].fill(b'*');
            found += 1;
        }
    }
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    if found > 0 {
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
    }
    if block.iter().all(|byte| *byte == 0) {
        return TarState::Header(BytesMut::new());
    }
    match header.entry_size() {
        // Further headers would follow; the guest never produces these.
        _ if header.entry_type() == EntryType::GNUSparse => TarState::Unknown(redactor.stream()),
        Ok(0) => TarState::Header(BytesMut::new()),
        Ok(size) => TarState::Content {
            left: size.div_ceil(BLOCK as u64).saturating_mul(BLOCK as u64),
            cover: redactor.stream(),
        },
        Err(_) => TarState::Unknown(redactor.stream()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "canary-7f3a-value";

    fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o640);
        builder.append_data(&mut header, name, content).unwrap();
    }

    fn link(builder: &mut tar::Builder<Vec<u8>>, name: &str, target: &str) {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, name, target).unwrap();
    }

    fn workspace() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let encoded = STANDARD.encode(VALUE);
        add(&mut builder, "plain.txt", format!("before {VALUE} after").as_bytes());
        add(&mut builder, &format!("folder/{VALUE}.txt"), b"its name tells");
        add(&mut builder, &encoded, &vec![b'x'; 5000]);
        // Longer than the field, and truncated in the middle of the value.
        add(&mut builder, &format!("{}{VALUE}/{}", "a".repeat(90), "b".repeat(60)), b"long");
        link(&mut builder, "link", &format!("../{VALUE}"));
        link(&mut builder, VALUE, "elsewhere");
        add(&mut builder, "last", VALUE.as_bytes());
        builder.into_inner().unwrap()
    }

    fn cover(tar: &[u8], pieces: &[usize]) -> Vec<u8> {
        let mut covered = RedactedTar::new(Redactor::new([VALUE]));
        let mut shown = Vec::new();
        let mut rest = tar;
        for size in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, left) = rest.split_at((*size).min(rest.len()));
            shown.extend(covered.push(Bytes::copy_from_slice(piece)));
            rest = left;
        }
        shown.extend(covered.finish());
        shown
    }

    #[test]
    fn secrets_in_names_and_link_targets_are_redacted_and_the_archive_stays_valid() {
        let tar = workspace();
        let shown = cover(&tar, &[700]);
        assert_eq!(shown.len(), tar.len());
        let text = String::from_utf8_lossy(&shown);
        assert!(!text.contains(VALUE) && !text.contains(&STANDARD.encode(VALUE)[..20]));
        assert!(!text.contains(&VALUE[..10]), "a part of it is left");
        let stars = "*".repeat(VALUE.len());
        let mut archive = tar::Archive::new(shown.as_slice());
        let mut names = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let target =
                entry.link_name_bytes().map(|target| String::from_utf8(target.into_owned()).unwrap());
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            match name.as_str() {
                "plain.txt" => assert_eq!(content, format!("before {stars} after")),
                "link" => assert_eq!(target, Some(format!("../{stars}"))),
                "last" => assert_eq!(content, stars),
                _ => {}
            }
            names.push(name);
        }
        assert_eq!(names.len(), 7);
        assert_eq!(names[1], format!("folder/{stars}.txt"));
        assert_eq!(names[3], format!("{}{stars}/{}", "a".repeat(90), "b".repeat(60)));
    }

    #[test]
    fn stream_without_secrets_is_unchanged() {
        let tar = workspace();
        let mut covered = RedactedTar::new(Redactor::new([]));
        assert_eq!(covered.push(Bytes::from(tar.clone())), tar);
        let mut covered = RedactedTar::new(Redactor::new(["another-value"]));
        let mut shown = covered.push(Bytes::from(tar.clone())).to_vec();
        shown.extend(covered.finish());
        assert_eq!(shown, tar);
    }

    proptest! {
        #[test]
        fn redaction_does_not_depend_on_chunk_boundaries(pieces in proptest::collection::vec(1usize..2000, 1..20)) {
            let tar = workspace();
            prop_assert_eq!(cover(&tar, &pieces), cover(&tar, &[tar.len()]));
        }

        #[test]
        fn arbitrary_streams_neither_panic_nor_change_length(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
            prop_assert_eq!(cover(&bytes, &[300]).len(), bytes.len());
        }
    }
}
