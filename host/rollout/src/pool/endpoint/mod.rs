//! One file an endpoint of SGLang's HTTP API: its request, its answer, its quirks.
//!
//! Nothing here retries, routes or remembers; that is the pool's. A new endpoint is a new file.

pub mod abort_request;
pub mod chat_completions;
pub mod continue_generation;
pub mod flush_cache;
pub mod generate;
pub mod get_weight_version;
pub mod get_weights_by_name;
pub mod health;
pub mod input_logprobs;
pub mod model_info;
pub mod pause_generation;
pub mod server_info;
pub mod update_weights_from_disk;
pub mod update_weights_from_distributed;
pub mod update_weights_from_tensor;
pub mod v1_loads;
pub mod weight_session;
pub mod weights_checker;
pub mod weights_group;
