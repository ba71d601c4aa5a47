//! Turns a fuzz target into an ordinary program that runs it over every input of its corpus and over deterministic
//! mutations of them. `fuzz/run` searches for new inputs with libFuzzer; this detects regressions on known ones.

use std::path::{Path, PathBuf};
use std::{fs, process};

use fastrand::Rng;

/// Mutated inputs per target: in total a few seconds without optimisation.
const MUTATED_INPUTS: usize = 5_000;

/// The maximum input length, as in `fuzz/run`.
const LONGEST: usize = 4_096;

/// Generates the `main` of a fuzz target; a drop-in replacement for the macro of the crate `libfuzzer-sys`.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        fn main() {
            $crate::run(env!("CARGO_CRATE_NAME"), |$input: &[u8]| $body);
        }
    };
    (|$input:ident: &str| $body:expr) => {
        fn main() {
            $crate::run(env!("CARGO_CRATE_NAME"), |bytes: &[u8]| {
                let $input = $crate::text_of(bytes);
                $body
            });
        }
    };
}

/// Calls `target` with every input of its corpus and with mutations of them.
pub fn run(name: &str, mut target: impl FnMut(&[u8])) {
    let corpus = inputs(&fuzz_folder().join("corpus").join(name));
    assert!(!corpus.is_empty(), "fuzz/corpus/{name} has no inputs");
    let mut call = |input: &[u8]| {
        let kept = SaveOnPanic { name, input };
        target(input);
        drop(kept);
    };
    call(b"");
    for input in &corpus {
        call(input);
    }
    let mut rng = Rng::with_seed(name.bytes().map(u64::from).sum());
    for _ in 0..MUTATED_INPUTS {
        call(&mutated(&corpus, &mut rng));
    }
    // The folder of targets that write files (parts/unpack_folder.rs).
    let _ = fs::remove_dir_all(format!("/dev/shm/caisson-fuzz-{}", process::id()));
}

/// The longest prefix of the bytes that is valid UTF-8.
pub fn text_of(bytes: &[u8]) -> &str {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => return text,
        Err(error) => &bytes[..error.valid_up_to()],
    };
    std::str::from_utf8(valid).unwrap_or_default()
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn inputs(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// Mutates one input: replaces, removes or repeats bytes, or copies them from another input.
fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(..=input.len());
        let end = (at + rng.usize(..=16)).min(input.len());
        match rng.u8(..5) {
            0 if at < input.len() => input[at] = rng.u8(..),
            1 => drop(input.drain(at..end)),
            2 => {
                let again = input[at..end].to_vec();
                drop(input.splice(at..at, again));
            }
            3 => input.truncate(at),
            _ => {
                let other = &corpus[rng.usize(..corpus.len())];
                let from = rng.usize(..=other.len());
                drop(input.splice(at..end, other[from..].iter().copied().take(64)));
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// Saves the input if the target panics.
struct SaveOnPanic<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for SaveOnPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let folder = fuzz_folder().join("artifacts").join(self.name);
        let path = folder.join("replay");
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, self.input));
        match written {
            Ok(()) => eprintln!("the input that failed: {}", path.display()),
            Err(error) => {
                eprintln!("the input that failed ({error} at {}): {:?}", path.display(), self.input)
            }
        }
    }
}
