//! Sends the output of a call to one follower.

use std::rc::Rc;
use std::time::Duration;

use protocol::{ExecEvent, Follow, Incoming, MessageStream, ProtocolError};
use tokio::time::{Instant, sleep_until};

use crate::journal::{PacedFollower, ProcessCall};
use crate::output::{Cursor, Next, Reach};

/// The shortest interval between two progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Follows a call until the call ends or the follower disconnects.
pub(crate) async fn follow(
    stream: &mut MessageStream,
    call: Rc<ProcessCall>,
    from_sequence: u64,
    follow: Follow,
) -> Result<(), ProtocolError> {
    let mut phases = call.phase.subscribe();
    let mut printed = call.printed.subscribe();
    let mut cursor = Cursor::at(from_sequence);
    // A follower that starts in the middle slows down the call only after its first chunk, when its byte position is
    // known.
    let mut paced: Option<PacedFollower> = None;
    let mut is_announced = false;
    let mut next_progress = Instant::now() + PROGRESS_INTERVAL;
    loop {
        if follow == Follow::Paced
            && paced.is_none()
            && (from_sequence == 0 || cursor.sequence() > from_sequence)
        {
            paced = Some(PacedFollower::new(Rc::clone(&call), cursor.position()));
        }
        // Read both before the store, so that no change is missed.
        printed.borrow_and_update();
        let phase = phases.borrow_and_update().clone();
        if !is_announced && let Some(pid) = phase.pid() {
            is_announced = true;
            stream.send(&ExecEvent::Started { pid: pid.unsigned_abs() }).await?;
        }
        let reach = match (follow, phase.outcome()) {
            (Follow::Capped, None) => Reach::Head,
            _ => Reach::All,
        };
        if send_ready(stream, &call, &mut cursor, reach, paced.as_ref()).await? {
            continue;
        }
        if let Some(outcome) = phase.outcome() {
            return stream.send(&ExecEvent::Ended(outcome.clone())).await;
        }
        let is_held_back = cursor.sequence() < call.store.borrow().next_sequence();
        if is_held_back && Instant::now() >= next_progress {
            next_progress = Instant::now() + PROGRESS_INTERVAL;
            send_progress(stream, &call).await?;
        }
        tokio::select! {
            changed = phases.changed() => changed.map_err(|_| ProtocolError::Closed)?,
            changed = printed.changed(), if !is_held_back => changed.map_err(|_| ProtocolError::Closed)?,
            () = sleep_until(next_progress), if is_held_back => {}
            incoming = stream.receive() => return match incoming? {
                Incoming::Closed => Ok(()),
                _ => Err(ProtocolError::Unexpected("something on a stream that only follows".into())),
            },
        }
    }
}

async fn send_progress(stream: &mut MessageStream, call: &ProcessCall) -> Result<(), ProtocolError> {
    let progress = {
        let store = call.store.borrow();
        ExecEvent::Progress { bytes: store.total_bytes(), lines: store.total_lines() }
    };
    stream.send(&progress).await
}

/// Sends the chunks within reach. Returns whether there were any. Returns from time to time even if there are more,
/// so that the caller can notice the end of the call.
async fn send_ready(
    stream: &mut MessageStream,
    call: &ProcessCall,
    cursor: &mut Cursor,
    reach: Reach,
    paced: Option<&PacedFollower>,
) -> Result<bool, ProtocolError> {
    const CHUNK_BATCH_SIZE: u32 = 64;
    for sent in 0..CHUNK_BATCH_SIZE {
        let next = call.store.borrow().next(cursor, reach);
        match next {
            Next::Chunk(chunk) => stream.send_output(&chunk).await?,
            Next::Gap { from_sequence, to_sequence, bytes } => {
                stream.send(&ExecEvent::Gap { from_sequence, to_sequence, bytes }).await?;
            }
            Next::Nothing => {
                // The follower has everything there is, even if some counted bytes could not be kept.
                paced.iter().for_each(|paced| paced.is_at(call.store.borrow().end()));
                return Ok(sent > 0);
            }
        }
        paced.iter().for_each(|paced| paced.is_at(cursor.position()));
    }
    Ok(true)
}
