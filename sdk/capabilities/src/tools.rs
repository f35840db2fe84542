//! The tools that the run's tool plugins offer, as generators call them. Needs no grant.

use crate::Error;

/// One tool as the policy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: String,
}

/// All tools of the run.
pub fn definitions() -> Vec<Definition> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::slime::plugin::tools::definitions()
        .into_iter()
        .map(|tool| Definition {
            name: tool.name,
            description: tool.description,
            parameters: tool.parameters,
        })
        .collect();
    #[cfg(not(target_family = "wasm"))]
    Vec::new()
}

/// Call one. `arguments` is a JSON object; the answer is text for the policy.
///
/// # Errors
/// `invalid-input` belongs to the policy, which may try again; anything else is the tool's failure.
pub fn call(name: &str, arguments: &str) -> Result<String, Error> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::slime::plugin::tools::call(name, arguments).map_err(crate::error);
    #[cfg(not(target_family = "wasm"))]
    {
        let _ = (name, arguments);
        crate::nobody()
    }
}
