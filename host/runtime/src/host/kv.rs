//! `kv`: bytes that outlive a call, kept apart by plugin.

use crate::bindings::kv::{Host, Scope};
use crate::bindings::types::{Error, ErrorCode};
use crate::context::Context;
use crate::units;

const MAX_KEY_BYTES: usize = 256;

type Answer<T> = wasmtime::Result<Result<T, Error>>;

impl Context {
    /// The rollout that a scope means; `None` is the whole run.
    fn rollout(&self, scope: Scope) -> Option<u64> {
        match scope {
            Scope::Run => None,
            Scope::Rollout => Some(self.seed),
        }
    }

    fn check_key(&mut self, key: &str) -> wasmtime::Result<Result<(), Error>> {
        self.count_host_call()?;
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let message = format!(
                "a key of {} bytes, 1 to {MAX_KEY_BYTES} are allowed",
                key.len()
            );
            return Ok(self.refuse(ErrorCode::InvalidInput, message));
        }
        Ok(Ok(()))
    }
}

impl Host for Context {
    fn get(&mut self, scope: Scope, key: String) -> Answer<Option<Vec<u8>>> {
        if let Err(error) = self.check_key(&key)? {
            return Ok(Err(error));
        }
        let value = self.plugin.kept.get(self.rollout(scope), &key);
        self.check_outgoing(value.as_ref().map_or(0, Vec::len))?;
        Ok(Ok(value))
    }

    fn set(&mut self, scope: Scope, key: String, value: Vec<u8>) -> Answer<()> {
        if let Err(error) = self.check_key(&key)? {
            return Ok(Err(error));
        }
        let most = self.plugin.grants.kv.unwrap_or(0);
        if self.plugin.kept.set(self.rollout(scope), key, value, most) {
            return Ok(Ok(()));
        }
        let message = format!(
            "the values would exceed the {} that were granted",
            units::bytes::text(most)
        );
        Ok(self.refuse(ErrorCode::LimitExceeded, message))
    }

    fn remove(&mut self, scope: Scope, key: String) -> Answer<()> {
        if let Err(error) = self.check_key(&key)? {
            return Ok(Err(error));
        }
        self.plugin.kept.remove(self.rollout(scope), &key);
        Ok(Ok(()))
    }
}
