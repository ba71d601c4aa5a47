//! Records the desktop to `.caisson/desktop.apng` in the workspace if the job requests it: one frame per interval,
//! only if the screen changed. The recorder neither starts the desktop nor keeps it running.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::{DesktopSpec, Recording};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::spawn_local;

use super::apng::{AnimatedPng, Area};
use super::png_encoder::PIXEL_BYTES;
use super::{Desktop, on_display};

const FOLDER: &str = ".caisson";
/// Size limit of all recording files of one sandbox. The recording ends when it is reached.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The most recording files of one sandbox. A new file begins when the screen size changes or the sandbox was
/// recreated.
const MAX_FILES: u32 = 20;
/// Intervals between frames.
const TIMELAPSE_PAUSE: Duration = Duration::from_secs(2);
const VIDEO_PAUSE: Duration = Duration::from_millis(200);
/// The display time of each time-lapse frame, and the longest display time of a video frame.
const TIMELAPSE_MS: u16 = 200;
const VIDEO_MOST_MS: u16 = 2000;

/// The pixels of the screen, including the pointer.
pub(super) struct Frame {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pixels: Vec<u8>,
}

/// Records the desktop until the guest exits.
pub(crate) struct Recorder {
    kind: Recording,
    state: Mutex<Option<RecordingState>>,
}

/// Starts recording if the job requests it and it has not started yet.
pub(super) fn begin(desktop: &Rc<Desktop>, spec: &DesktopSpec) {
    let Some(kind) = spec.recording else { return };
    let mut slot = desktop.recorder.borrow_mut();
    if slot.is_some() {
        return;
    }
    let folder = Path::new(&desktop.resources.spawner.directory).join(FOLDER);
    let state = RecordingState { folder, running: None, written: 0, files: 0 };
    let recorder = Rc::new(Recorder { kind, state: Mutex::new(Some(state)) });
    *slot = Some(Rc::clone(&recorder));
    let desktop = Rc::clone(desktop);
    spawn_local(async move {
        let pause = match kind {
            Recording::Timelapse => TIMELAPSE_PAUSE,
            Recording::Video => VIDEO_PAUSE,
        };
        while recorder.take(&desktop).await.is_some() {
            tokio::time::sleep(pause).await;
        }
    });
}

impl Recorder {
    /// Records the current screen, then pauses the recording until the returned guard is dropped, so that the file
    /// can be read.
    pub(crate) async fn hold<'a>(&'a self, desktop: &Desktop) -> MutexGuard<'a, impl Sized> {
        let mut state = self.state.lock().await;
        self.add(desktop, &mut state).await;
        state
    }

    /// Records the current screen. Returns `None` once the recording has ended.
    async fn take(&self, desktop: &Desktop) -> Option<()> {
        let mut state = self.state.lock().await;
        self.add(desktop, &mut state).await;
        state.as_ref().map(|_| ())
    }

    async fn add(&self, desktop: &Desktop, slot: &mut Option<RecordingState>) {
        if slot.is_none() {
            return;
        }
        // The desktop may not be running now but may start later.
        let Ok(frame) = on_display(desktop, |display| display.frame()).await else { return };
        let (Some(mut state), kind) = (slot.take(), self.kind) else { return };
        let added =
            desktop.resources.files.workers.short(move || state.add(frame, kind).map(|()| state)).await;
        // If the disk is full or a file cannot be created, the recording ends. Earlier frames remain.
        *slot = added.ok().and_then(Result::ok);
    }
}

/// The recording so far. Used on a thread with the agent's permissions.
struct RecordingState {
    folder: PathBuf,
    running: Option<CurrentFile>,
    /// Bytes in earlier files.
    written: u64,
    files: u32,
}

struct CurrentFile {
    animation: AnimatedPng,
    last: Frame,
    changed: Instant,
}

impl RecordingState {
    fn add(&mut self, frame: Frame, kind: Recording) -> io::Result<()> {
        let Some(running) = &mut self.running else { return self.start(frame) };
        if (frame.width, frame.height) != (running.last.width, running.last.height) {
            self.written += running.animation.bytes();
            return self.start(frame);
        }
        let Some(area) = changed_area(&running.last, &frame) else { return Ok(()) };
        if self.written + running.animation.bytes() > MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let shown = u16::try_from(running.changed.elapsed().as_millis()).unwrap_or(u16::MAX);
        let shown = match kind {
            Recording::Timelapse => TIMELAPSE_MS,
            Recording::Video => shown.min(VIDEO_MOST_MS),
        };
        running.animation.add(area, rows_of(&frame, area), shown)?;
        (running.last, running.changed) = (frame, Instant::now());
        Ok(())
    }

    fn start(&mut self, frame: Frame) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let file = loop {
            self.files += 1;
            if self.files > MAX_FILES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let name = match self.files {
                1 => "desktop.apng".to_owned(),
                number => format!("desktop-{number}.apng"),
            };
            // Do not overwrite a recording from before the sandbox was recreated.
            match OpenOptions::new().write(true).create_new(true).mode(0o644).open(self.folder.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => break other?,
            }
        };
        let mut animation = AnimatedPng::begin(file, frame.width, frame.height)?;
        let all = Area { x: 0, y: 0, width: frame.width, height: frame.height };
        animation.add(all, rows_of(&frame, all), 0)?;
        self.running = Some(CurrentFile { animation, last: frame, changed: Instant::now() });
        Ok(())
    }
}

fn rows(frame: &Frame) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
    frame.pixels.chunks_exact((frame.width as usize * PIXEL_BYTES).max(PIXEL_BYTES))
}

/// The smallest rectangle that contains all changes; `None` if nothing changed.
fn changed_area(old: &Frame, new: &Frame) -> Option<Area> {
    let differs = |(old, new): (&[u8], &[u8])| old != new;
    let top = rows(old).zip(rows(new)).position(differs)?;
    let below = rows(old).rev().zip(rows(new).rev()).position(differs)?;
    let (mut left, mut right) = (usize::MAX, 0);
    let height = rows(new).len() - top - below;
    for (old, new) in rows(old).zip(rows(new)).skip(top).take(height) {
        let mut pixels = old.chunks_exact(PIXEL_BYTES).zip(new.chunks_exact(PIXEL_BYTES));
        let width = pixels.len();
        if let Some(first) = pixels.position(differs) {
            left = left.min(first);
            right = right.max(pixels.rev().position(differs).map_or(first, |last| width - 1 - last));
        }
    }
    let number = |value: usize| u32::try_from(value).unwrap_or(0);
    let width = (right + 1).checked_sub(left)?;
    Some(Area { x: number(left), y: number(top), width: number(width), height: number(height) })
}

/// The part of each row inside `area`.
fn rows_of(frame: &Frame, area: Area) -> impl Iterator<Item = &[u8]> {
    let (from, bytes) = (area.x as usize * PIXEL_BYTES, area.width as usize * PIXEL_BYTES);
    let wanted = rows(frame).skip(area.y as usize).take(area.height as usize);
    wanted.map(move |row| row.get(from..from + bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(width: u32, height: u32, value: u8) -> Frame {
        Frame { width, height, pixels: vec![value; (width * height) as usize * PIXEL_BYTES] }
    }

    proptest! {
        #[test]
        fn changed_area_is_the_bounding_box_of_all_changes(
            changes in prop::collection::vec((0u32..9, 0u32..7), 1..6)
        ) {
            let (old, mut new) = (frame(9, 7, 0), frame(9, 7, 0));
            for (x, y) in &changes {
                new.pixels[(y * 9 + x) as usize * PIXEL_BYTES] = 1;
            }
            let area = changed_area(&old, &new).unwrap();
            let (xs, ys): (Vec<u32>, Vec<u32>) = changes.into_iter().unzip();
            prop_assert_eq!((area.x, area.y), (*xs.iter().min().unwrap(), *ys.iter().min().unwrap()));
            prop_assert_eq!(area.x + area.width - 1, *xs.iter().max().unwrap());
            prop_assert_eq!(area.y + area.height - 1, *ys.iter().max().unwrap());
            let pixels: usize = rows_of(&new, area).map(|row| row.len() / PIXEL_BYTES).sum();
            prop_assert_eq!(pixels, (area.width * area.height) as usize);
        }
    }

    #[test]
    fn only_changes_are_recorded_and_an_earlier_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("desktop.apng"), "of an earlier life").unwrap();
        let mut state =
            RecordingState { folder: folder.path().to_owned(), running: None, written: 0, files: 0 };
        for value in [1, 1, 2, 2, 1] {
            state.add(frame(8, 8, value), Recording::Timelapse).unwrap();
        }
        state.add(frame(4, 4, 9), Recording::Video).unwrap();
        let frames = |name: &str| {
            let file = std::fs::read(folder.path().join(name)).unwrap();
            let reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
            reader.info().animation_control().unwrap().num_frames
        };
        assert_eq!((frames("desktop-2.apng"), frames("desktop-3.apng")), (3, 1));
        assert_eq!(std::fs::read(folder.path().join("desktop.apng")).unwrap(), b"of an earlier life");
    }
}
