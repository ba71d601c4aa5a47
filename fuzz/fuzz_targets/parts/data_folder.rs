//! What archives need of the orchestrator's module of the same name.

#[path = "../../../crates/orchestrator/src/data_folder/result_files.rs"]
pub(crate) mod result_files;

const AGENT_LOG: &str = "logs/agent.log";
const FILE_LIST: &str = "audit/files.jsonl";
const NETWORK_LIST: &str = "audit/network.jsonl";
