//! Bytes that outlive a call. Needs the grant `kv`.

use crate::Error;

/// Who shares a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All calls of this plugin in the run; its results are then no longer repeatable.
    Run,
    /// The calls of this plugin that belong to one rollout.
    Rollout,
}

/// The value at `key`.
///
/// # Errors
/// Not granted, or a key that is empty or longer than 256 bytes.
pub fn get(scope: Scope, key: &str) -> Result<Option<Vec<u8>>, Error> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::slime::plugin::kv::get(wit(scope), key).map_err(crate::error);
    #[cfg(not(target_family = "wasm"))]
    {
        let _ = (scope, key);
        crate::nobody()
    }
}

/// Set the value at `key`.
///
/// # Errors
/// As [`get`]; or all values together would exceed what was granted.
pub fn set(scope: Scope, key: &str, value: &[u8]) -> Result<(), Error> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::slime::plugin::kv::set(wit(scope), key, value).map_err(crate::error);
    #[cfg(not(target_family = "wasm"))]
    {
        let _ = (scope, key, value);
        crate::nobody()
    }
}

/// Forget the value at `key`.
///
/// # Errors
/// As [`get`].
pub fn remove(scope: Scope, key: &str) -> Result<(), Error> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::slime::plugin::kv::remove(wit(scope), key).map_err(crate::error);
    #[cfg(not(target_family = "wasm"))]
    {
        let _ = (scope, key);
        crate::nobody()
    }
}

#[cfg(target_family = "wasm")]
fn wit(scope: Scope) -> crate::bindings::slime::plugin::kv::Scope {
    match scope {
        Scope::Run => crate::bindings::slime::plugin::kv::Scope::Run,
        Scope::Rollout => crate::bindings::slime::plugin::kv::Scope::Rollout,
    }
}
