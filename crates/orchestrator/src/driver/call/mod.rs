//! The call engine: starts a call in the sandbox, follows its output, resumes after the link broke, and kills it.
//!
//! This is the only place that sends the request to start a process, so "a call runs once" is implemented here: the
//! request is sent if the guest cannot know the call, or has just said that it does not know it. What differs between
//! callers is in a [`CallHost`] (where the link comes from, when to stop) and a [`Consumer`] (where the output goes).

mod consumer;
mod job_call;
mod one_link;
#[cfg(test)]
mod tests;

use std::time::Duration;

use job::CallRef;
use protocol::{
    CallFollower, CallKey, CallStatus, Exec, ExecEvent, ExecOutcome, ExecUpdate, Follow, GuestClient,
    ProtocolError,
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::OrchestratorError;

pub(crate) use self::consumer::Consumer;
pub(super) use self::job_call::JobCall;
pub(crate) use self::one_link::OneLink;

/// How to begin.
pub(crate) enum Begin {
    /// Starts a call that the guest cannot know yet.
    Start(Box<Exec>),
    /// Continues a call that may have been started before, or starts it if the guest does not know it.
    Resume(Box<Exec>),
    /// Follows a call that was started before.
    Attach,
}

/// What became of a call.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The call has ended. The consumer has all of its output, but may not have flushed it.
    Ended(ExecOutcome),
    /// The host has waited long enough. The call continues.
    StillRunning,
    /// The guest refused, for example because it does not know the call.
    Refused(String),
}

impl Followed {
    /// The outcome, for callers that wait for as long as the call takes.
    pub(crate) fn outcome(self) -> Result<ExecOutcome, ProtocolError> {
        match self {
            Self::Ended(outcome) => Ok(outcome),
            Self::StillRunning => Err(ProtocolError::Unexpected("no end of the call".into())),
            Self::Refused(message) => Err(ProtocolError::Refused(message)),
        }
    }
}

/// Why to stop before a call has ended.
pub(crate) enum Interrupt<S> {
    /// The host has waited long enough. The call continues.
    Expired,
    /// The host gives up. The call continues.
    Leave(S),
    /// The call must be killed.
    Kill(S),
}

/// Where the link comes from, and when to stop.
pub(crate) trait CallHost: Send {
    /// Why the host gives up.
    type Exit: Send;

    /// A client of the guest that runs the call. Called at the start and after each broken link.
    fn client(&mut self) -> impl Future<Output = Result<GuestClient, Self::Exit>> + Send;

    /// Called before each request that starts the call.
    fn before_start(&mut self) -> Result<(), Self::Exit>;

    /// Returns when to stop following. Cancelled and called again after each update.
    fn interrupted(&mut self) -> impl Future<Output = Interrupt<Self::Exit>> + Send;

    /// Handles a failed request: `Ok` if another attempt on a new link makes sense.
    fn after_break(&mut self, error: ProtocolError) -> impl Future<Output = Result<(), Self::Exit>> + Send;

    /// What to do if the consumer fails.
    fn unrecorded(&self, error: OrchestratorError) -> Interrupt<Self::Exit>;

    /// How long the guest may take to kill the call.
    fn kill_timeout(&self) -> Duration {
        Duration::from_secs(15)
    }
}

/// The key under which the guest knows a call of the log.
pub(crate) fn key_of(call: &CallRef) -> CallKey {
    CallKey::new(call.id.clone(), call.attempt)
}

/// Runs a call or follows it, across broken links, until it ends or `host` stops. The error is the host's; if it wanted
/// the call killed, the call has been killed and its remaining output is flushed.
pub(crate) async fn run<H: CallHost, C: Consumer>(
    host: &mut H,
    key: &CallKey,
    mut begin: Begin,
    consumer: &mut C,
) -> Result<Followed, H::Exit> {
    loop {
        let client = host.client().await?;
        let opened = match begin.request(&client, key).await {
            Ok(Some(exec)) => {
                host.before_start()?;
                client.exec(exec.clone(), C::FOLLOW).await
            }
            Ok(None) => client.follow(key.clone(), consumer.wanted_chunk(), C::FOLLOW).await,
            Err(error) => Err(error),
        };
        begin = begin.after_first_attempt();
        let ending = match opened {
            Ok(mut follower) => follow(host, &mut follower, consumer).await,
            Err(error) => FollowEnd::Broken(error),
        };
        match ending {
            FollowEnd::Ended(outcome) => return Ok(Followed::Ended(outcome)),
            FollowEnd::Broken(ProtocolError::Refused(message)) => return Ok(Followed::Refused(message)),
            FollowEnd::Broken(error) => host.after_break(error).await?,
            FollowEnd::Interrupted(Interrupt::Expired) => return Ok(Followed::StillRunning),
            FollowEnd::Interrupted(Interrupt::Leave(stop)) => return Err(stop),
            FollowEnd::Interrupted(Interrupt::Kill(stop)) => {
                kill(&client, key, consumer, host.kill_timeout()).await;
                return Err(stop);
            }
        }
    }
}

/// Starts a call for a client that reads the output itself. Returns the first update: once the guest has reported on a
/// call, other links can follow it too, with [`run`] and [`Begin::Attach`].
pub(crate) async fn start(
    client: &GuestClient,
    exec: Exec,
    follow: Follow,
) -> Result<(CallFollower, ExecUpdate), ProtocolError> {
    let mut follower = client.exec(exec, follow).await?;
    let first = follower.next().await?;
    Ok((follower, first))
}

impl Begin {
    /// The request to send; `None` if the call was started before.
    async fn request(&self, client: &GuestClient, key: &CallKey) -> Result<Option<&Exec>, ProtocolError> {
        match self {
            Self::Start(exec) => Ok(Some(exec.as_ref())),
            Self::Attach => Ok(None),
            Self::Resume(exec) => match client.call_status(key.clone()).await? {
                CallStatus::Unknown => Ok(Some(exec.as_ref())),
                CallStatus::Running { .. } | CallStatus::Ended(_) => Ok(None),
                CallStatus::File(_) | CallStatus::Answered => {
                    Err(ProtocolError::Unexpected("the result of something else for a process".into()))
                }
            },
        }
    }

    /// How to begin once a request may have reached the guest.
    fn after_first_attempt(self) -> Self {
        match self {
            Self::Start(exec) => Self::Resume(exec),
            other => other,
        }
    }
}

/// Why following stopped.
enum FollowEnd<S> {
    Ended(ExecOutcome),
    Broken(ProtocolError),
    Interrupted(Interrupt<S>),
}

async fn follow<H: CallHost, C: Consumer>(
    host: &mut H,
    follower: &mut CallFollower,
    consumer: &mut C,
) -> FollowEnd<H::Exit> {
    loop {
        let flush_at = consumer.flush_at();
        let recorded = tokio::select! {
            update = follower.next() => match update {
                Ok(ExecUpdate::Event(ExecEvent::Ended(outcome))) => return FollowEnd::Ended(outcome),
                Ok(update) => record(update, consumer).await,
                Err(error) => return FollowEnd::Broken(error),
            },
            // Viewers of the log get this output without waiting for more.
            () = sleep_until(flush_at.unwrap_or_else(Instant::now)), if flush_at.is_some() => {
                consumer.flush().await
            }
            interrupt = host.interrupted() => return FollowEnd::Interrupted(interrupt),
        };
        if let Err(error) = recorded {
            return FollowEnd::Interrupted(host.unrecorded(error));
        }
    }
}

async fn record<C: Consumer>(update: ExecUpdate, consumer: &mut C) -> Result<(), OrchestratorError> {
    match update {
        ExecUpdate::Output(chunk) => consumer.take(chunk).await,
        ExecUpdate::Event(ExecEvent::Gap { to_sequence, bytes, .. }) => {
            consumer.skip(to_sequence, bytes).await
        }
        ExecUpdate::Event(ExecEvent::Started { .. }) => {
            consumer.started();
            Ok(())
        }
        ExecUpdate::Event(ExecEvent::Progress { .. } | ExecEvent::Ended(_)) => Ok(()),
    }
}

/// Kills a call and takes its remaining output. If the guest does not answer in time, the next request to it deals with
/// that.
async fn kill<C: Consumer>(client: &GuestClient, key: &CallKey, consumer: &mut C, patience: Duration) {
    let killing = async {
        client.kill(key.clone()).await?;
        let mut follower = client.follow(key.clone(), consumer.wanted_chunk(), C::FOLLOW).await?;
        loop {
            match follower.next().await? {
                ExecUpdate::Event(ExecEvent::Ended(_)) => return Ok::<(), ProtocolError>(()),
                update => drop(record(update, consumer).await),
            }
        }
    };
    tokio::select! {
        _ = timeout(patience, killing) => {}
        // A frozen guest cannot kill anything.
        () = silence(client, patience / 3) => {}
    }
    let _ = consumer.flush_all().await;
}

/// Returns if the guest does not answer a ping within `patience`; otherwise never.
async fn silence(client: &GuestClient, patience: Duration) {
    if timeout(patience, client.ping()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}
