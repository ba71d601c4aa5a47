//! Builds tar archives from the fuzzer's input, with correct header checksums, so that the code behind the check is
//! reached.

/// Each entry is `kind, length of the name, name, length of the link, link, size, mode`, then so much content.
pub(crate) fn build_tar(bytes: &[u8]) -> Vec<u8> {
    let mut rest = bytes.iter().copied();
    let mut archive = Vec::new();
    while let Some(kind) = rest.next() {
        let mut header = [0u8; 512];
        let mut text = |at: usize, most: usize, rest: &mut dyn Iterator<Item = u8>| {
            let length = usize::from(rest.next().unwrap_or(0)).min(most);
            for place in &mut header[at..at + length] {
                *place = rest.next().unwrap_or(b'x');
            }
        };
        text(0, 100, &mut rest);
        text(157, 100, &mut rest);
        let size = rest.next().unwrap_or(0);
        let mode = rest.next().unwrap_or(0);
        header[100..108].copy_from_slice(format!("{mode:07o}\0").as_bytes());
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[156] = b"01234567xgLKSVN\0"[usize::from(kind) % 16];
        header[257..265].copy_from_slice(if kind & 128 == 0 { b"ustar\x0000" } else { b"ustar  \0" });
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        let mut content: Vec<u8> = rest.by_ref().take(usize::from(size)).collect();
        content.resize(content.len().div_ceil(512) * 512, 0);
        archive.extend_from_slice(&content);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}
