//! Runs code for the agent, in a live kernel where the image has one, else in a fresh process.

use std::time::Duration;

use agent::{CodeOrder, CodeReport, ExecOrder, ExecStart};
use protocol::CallKey;

use super::super::Stop;
use super::host::AgentHost;
use crate::code::{Language, program_of_code};

/// Longer than the guest needs to end a process that ignores its signals, or to start a kernel.
const END_PATIENCE: Duration = Duration::from_secs(30);

impl AgentHost<'_> {
    pub(super) async fn code(&self, order: CodeOrder) -> Result<CodeReport, Stop> {
        let language = match order.language {
            agent::Language::Python => Language::Python,
            agent::Language::TypeScript => Language::Typescript,
        };
        let start = ExecStart {
            timeout: Some(order.timeout),
            ..ExecStart::program(program_of_code(&language, &order.code))
        };
        let report = self
            .run(ExecOrder {
                key: CallKey::new(order.call.clone(), 1),
                call: order.call,
                start: Some(start),
                from_chunk: 0,
                wait: order.timeout + END_PATIENCE,
            })
            .await?;
        let problem = match report.end {
            Some(end) => end.problem,
            None => Some("it did not end in time".into()),
        };
        Ok(CodeReport { output: report.output, images: report.images, problem, note: None })
    }
}
