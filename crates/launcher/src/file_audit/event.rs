//! Parses fanotify events from the kernel's buffer. Does no I/O; parsing stops at a truncated event.

use std::os::fd::RawFd;

/// Header of every event: length, version, reserved, header length, mask, descriptor, process id.
const HEADER: usize = 24;
/// Header of every record of an event: type, padding, length.
const RECORD: usize = 4;
/// A name record begins with the file system id, followed by the handle's length and type.
const HANDLE: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawEvent {
    pub(super) mask: u64,
    /// The file's descriptor, if the fanotify group reports descriptors. The reader must close it.
    pub(super) fd: Option<RawFd>,
    pub(super) pid: i32,
    pub(super) names: Vec<Name>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) role: Role,
    pub(super) handle_kind: i32,
    pub(super) handle: Vec<u8>,
    pub(super) name: Vec<u8>,
}

/// The role of a name in a rename event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Only,
    Old,
    New,
}

/// Parses a buffer of events.
pub(super) fn read(mut bytes: &[u8]) -> Vec<RawEvent> {
    let mut events = Vec::new();
    while bytes.len() >= HEADER {
        let length = number(bytes, 0) as usize;
        if length < HEADER || length > bytes.len() {
            break;
        }
        let (event, rest) = bytes.split_at(length);
        bytes = rest;
        let header_length = usize::from(u16::from_ne_bytes([event[6], event[7]]));
        let mask = u64::from(number(event, 8)) | u64::from(number(event, 12)) << 32;
        let (fd, pid) = (number(event, 16) as i32, number(event, 20) as i32);
        let names = event.get(header_length..).map(read_names).unwrap_or_default();
        events.push(RawEvent { mask, fd: (fd >= 0).then_some(fd), pid, names });
    }
    events
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn read_names(mut bytes: &[u8]) -> Vec<Name> {
    let mut names = Vec::new();
    while bytes.len() >= RECORD {
        let length = usize::from(u16::from_ne_bytes([bytes[2], bytes[3]]));
        if length < RECORD || length > bytes.len() {
            break;
        }
        let (record, rest) = bytes.split_at(length);
        bytes = rest;
        let role = match record[0] {
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME => Role::Only,
            libc::FAN_EVENT_INFO_TYPE_OLD_DFID_NAME => Role::Old,
            libc::FAN_EVENT_INFO_TYPE_NEW_DFID_NAME => Role::New,
            _ => continue,
        };
        let handle_length = number(record, RECORD + 8) as usize;
        let handle_kind = number(record, RECORD + 12) as i32;
        let start = RECORD + HANDLE;
        let Some(end) = start.checked_add(handle_length) else { break };
        let (Some(handle), Some(name)) = (record.get(start..end), record.get(end..)) else { break };
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        names.push(Name { role, handle_kind, handle: handle.to_vec(), name: name.to_vec() });
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_parsed_and_truncated_ones_are_ignored() {
        let mut record = vec![libc::FAN_EVENT_INFO_TYPE_DFID_NAME, 0, 0, 0];
        record.extend([0; 8]);
        record.extend(4u32.to_ne_bytes());
        record.extend(1i32.to_ne_bytes());
        record.extend([9, 8, 7, 6]);
        record.extend(b"name\0\0\0\0");
        let length = u16::try_from(record.len()).unwrap();
        record[2..4].copy_from_slice(&length.to_ne_bytes());
        let mut event = Vec::new();
        event.extend(u32::try_from(HEADER + record.len()).unwrap().to_ne_bytes());
        event.extend([3, 0]);
        event.extend(24u16.to_ne_bytes());
        event.extend(0x100u64.to_ne_bytes());
        event.extend((-1i32).to_ne_bytes());
        event.extend(42i32.to_ne_bytes());
        event.extend(&record);
        let read_events = read(&event);
        assert_eq!(read_events.len(), 1);
        assert_eq!((read_events[0].mask, read_events[0].fd, read_events[0].pid), (0x100, None, 42));
        let name =
            Name { role: Role::Only, handle_kind: 1, handle: vec![9, 8, 7, 6], name: b"name".to_vec() };
        assert_eq!(read_events[0].names, [name]);
        for cut in 0..event.len() {
            assert!(read(&event[..cut]).is_empty());
        }
        let mut lying = event.clone();
        lying[HEADER + 12..HEADER + 16].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(read(&lying)[0].names.is_empty());
    }
}
