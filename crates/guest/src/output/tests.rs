//! Tests of the output store.

use std::path::PathBuf;

use proptest::prelude::*;
use protocol::OutputStream;

use super::store::{MAX_WAITING, StoreLimits};
use super::*;

const SMALL: StoreLimits =
    StoreLimits { segment_bytes: 64, header_bytes: 48, head_segments: 2, tail_segments: 2 };

/// A store that keeps nothing in memory.
fn store(limits: StoreLimits) -> (tempfile::TempDir, OutputStore) {
    store_with(limits, &MemoryBudget::of(0))
}

fn store_with(limits: StoreLimits, memory_budget: &MemoryBudget) -> (tempfile::TempDir, OutputStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = OutputStore::new(directory.path().to_owned(), limits, memory_budget.clone());
    (directory, store)
}

fn text(store: &OutputStore) -> Vec<u8> {
    let (all, next) = collect(store, 0, Reach::All);
    assert_eq!(next, store.next_sequence());
    all.into_iter().map(|byte| byte.expect("a gap")).collect()
}

fn files(directory: &tempfile::TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

/// Everything that a follower receives: the bytes, with `None` for each missing one.
fn collect(store: &OutputStore, from: u64, reach: Reach) -> (Vec<Option<u8>>, u64) {
    let mut cursor = Cursor::at(from);
    let mut all = Vec::new();
    loop {
        match store.next(&mut cursor, reach) {
            Next::Chunk(chunk) => all.extend(chunk.bytes.iter().copied().map(Some)),
            Next::Gap { from_sequence, to_sequence, bytes } => {
                assert!(from_sequence < to_sequence);
                all.extend(std::iter::repeat_n(None, usize::try_from(bytes).unwrap()));
            }
            Next::Nothing => return (all, cursor.sequence()),
        }
    }
}

#[test]
fn output_that_fits_the_head_is_complete() {
    let (_directory, mut store) = store(SMALL);
    store.append(OutputStream::Stdout, b"one\n");
    store.append(OutputStream::Stderr, b"two\nthree");
    let (all, next) = collect(&store, 0, Reach::Head);
    assert_eq!(all.into_iter().flatten().collect::<Vec<_>>(), b"one\ntwo\nthree");
    assert_eq!((next, store.total_lines(), store.dropped_bytes()), (2, 2, 0));
}

#[test]
fn tail_is_withheld_from_head_only_followers() {
    let (_directory, mut store) = store(SMALL);
    store.append(OutputStream::Stdout, &[7; 200]);
    assert_eq!(collect(&store, 0, Reach::Head).0.len(), 128);
    assert_eq!(collect(&store, 0, Reach::All).0.len(), 200);
}

#[test]
fn unwritable_output_is_counted_as_dropped() {
    let mut store = OutputStore::new(PathBuf::from("/proc/no/such/place"), SMALL, MemoryBudget::of(0));
    store.append(OutputStream::Stdout, b"lost\n");
    store.seal();
    assert_eq!((store.total_bytes(), store.dropped_bytes(), store.next_sequence()), (5, 5, 1));
    let gap = Next::Gap { from_sequence: 0, to_sequence: 1, bytes: 5 };
    assert_eq!(store.next(&mut Cursor::at(0), Reach::All), gap);
}

#[test]
fn output_dropped_while_the_disk_is_full_is_a_gap_after_what_waited() {
    let full_disk = || {
        let (directory, mut store) = store(SMALL);
        std::os::unix::fs::symlink("/dev/full", directory.path().join("head")).unwrap();
        for _ in 0..MAX_WAITING + 2 {
            store.append(OutputStream::Stdout, b"abc");
        }
        assert!(store.is_waiting_for_space());
        (directory, store)
    };
    let (kept, dropped) = (3 * MAX_WAITING, 3 * 2);

    let (directory, mut store) = full_disk();
    let path = directory.path().join("free");
    let free = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
    store.head = Some(free);
    assert!(!store.is_waiting_for_space());
    store.append(OutputStream::Stdout, b"after");
    let (all, next) = collect(&store, 0, Reach::All);
    assert_eq!((all.len(), next), (kept + dropped + 5, store.next_sequence()));
    assert!(all[..kept].iter().all(Option::is_some) && all[kept..kept + dropped].iter().all(Option::is_none));
    assert_eq!(all[kept + dropped..].iter().flatten().copied().collect::<Vec<_>>(), b"after");
    assert_eq!((store.total_bytes(), store.dropped_bytes()), (all.len() as u64, dropped as u64));

    let (_directory, mut store) = full_disk();
    store.seal();
    let (all, next) = collect(&store, 0, Reach::All);
    assert_eq!((all, next), (vec![None; kept + dropped], store.next_sequence()));
}

#[test]
fn forgotten_output_is_one_gap() {
    let (directory, mut store) = store(SMALL);
    store.append(OutputStream::Stdout, &[1; 500]);
    store.seal();
    store.forget();
    let (all, next) = collect(&store, 0, Reach::All);
    assert_eq!((all.len(), next), (500, store.next_sequence()));
    assert!(all.iter().all(Option::is_none));
    assert_eq!(files(&directory), 0);
}

#[test]
fn short_output_creates_no_file_and_can_be_forgotten() {
    let memory_budget = MemoryBudget::of(1000);
    let (directory, mut store) = store_with(DEFAULT_LIMITS, &memory_budget);
    store.append(OutputStream::Stdout, b"one\n");
    store.append(OutputStream::Stderr, b"two\n");
    assert_eq!((text(&store), files(&directory)), (b"one\ntwo\n".to_vec(), 0));
    assert_eq!(memory_budget.left(), 1000 - 2 * (3 + 4));
    store.seal();
    store.forget();
    assert_eq!((collect(&store, 0, Reach::All).0, memory_budget.left()), (vec![None; 8], 1000));
}

#[test]
fn growing_output_moves_to_a_file_completely() {
    let memory_budget = MemoryBudget::full();
    let before = memory_budget.left();
    let (directory, mut store) = store_with(DEFAULT_LIMITS, &memory_budget);
    let mut printed = Vec::new();
    for number in 0..2000 {
        let line = format!("line {number}\n").into_bytes();
        store.append(OutputStream::Stdout, &line);
        printed.extend(line);
        if number == 3 {
            assert_eq!((text(&store), files(&directory)), (printed.clone(), 0));
        }
    }
    assert_eq!((text(&store), files(&directory), memory_budget.left()), (printed, 1, before));
}

#[test]
fn calls_share_one_memory_budget() {
    let memory_budget = MemoryBudget::of(100);
    let calls: Vec<_> = (0..3).map(|_| store_with(DEFAULT_LIMITS, &memory_budget)).collect();
    let print = |(directory, mut store): (tempfile::TempDir, OutputStore)| {
        store.append(OutputStream::Stdout, &[7; 40]);
        assert_eq!(text(&store), [7; 40]);
        (files(&directory), store)
    };
    let printed: Vec<_> = calls.into_iter().map(print).collect();
    assert_eq!(printed.iter().map(|(files, _)| *files).collect::<Vec<_>>(), [0, 0, 1]);
    drop(printed);
    assert_eq!(memory_budget.left(), 100);
}

#[test]
fn slow_follower_gets_a_gap_and_the_newest_output() {
    let (_directory, mut store) = store(SMALL);
    store.append(OutputStream::Stdout, &[0; 130]);
    let mut cursor = Cursor::at(0);
    while store.next(&mut cursor, Reach::All) != Next::Nothing {}
    store.append(OutputStream::Stdout, &[1; 1000]);
    assert!(matches!(store.next(&mut cursor, Reach::All), Next::Gap { .. }));
    let Next::Chunk(chunk) = store.next(&mut cursor, Reach::All) else { panic!("no chunk after the gap") };
    assert!(chunk.bytes.iter().all(|byte| *byte == 1));
}

proptest! {
    #[test]
    fn head_and_tail_are_exact_and_files_stay_small(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..90), 0..60), in_memory in 0usize..300) {
        let (directory, mut store) = store_with(SMALL, &MemoryBudget::of(in_memory));
        let mut everything = Vec::new();
        for piece in &pieces {
            store.append(OutputStream::Stdout, piece);
            everything.extend_from_slice(piece);
        }
        store.seal();
        let (seen, next) = collect(&store, 0, Reach::All);
        prop_assert_eq!(next, store.next_sequence());
        prop_assert_eq!(seen.len(), everything.len());
        for (seen, real) in seen.iter().zip(&everything) {
            prop_assert!(seen.is_none_or(|byte| byte == *real));
        }
        let missing = seen.iter().filter(|byte| byte.is_none()).count() as u64;
        prop_assert_eq!(missing, store.dropped_bytes());
        let tail_kept = seen.iter().rev().take_while(|byte| byte.is_some()).count();
        prop_assert!(missing == 0 || tail_kept <= 128);
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            prop_assert!(entry.unwrap().metadata().unwrap().len() <= 3 * SMALL.slot_bytes());
        }
    }

    #[test]
    fn following_from_any_number_gives_the_same_end(pieces in prop::collection::vec(1usize..40, 1..60), from in 0u64..60, in_memory in 0usize..300) {
        let (_directory, mut store) = store_with(SMALL, &MemoryBudget::of(in_memory));
        for (index, length) in pieces.iter().enumerate() {
            store.append(OutputStream::Stderr, &vec![u8::try_from(index).unwrap(); *length]);
        }
        store.seal();
        let (whole, end) = collect(&store, 0, Reach::All);
        let (part, part_end) = collect(&store, from, Reach::All);
        prop_assert_eq!(end, part_end.min(store.next_sequence()));
        let known: Vec<u8> = part.iter().rev().map_while(|byte| *byte).collect();
        let all: Vec<u8> = whole.iter().rev().map_while(|byte| *byte).collect();
        prop_assert_eq!(&all[..known.len()], &known[..]);
    }
}
