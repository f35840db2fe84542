//! A call on a group that may still be under way.

use crate::Result;

type Wait = Box<dyn FnOnce() -> Result<()> + Send>;

/// What a call will have given once it is waited for.
pub struct Begun<T> {
    pending: Pending,
    value: T,
}

/// Dropped, it is waited for too: memory is in use until then.
struct Pending(Option<Wait>);

impl Pending {
    fn wait(&mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |wait| wait())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

impl<T> Begun<T> {
    /// It is done already.
    pub fn done(value: T) -> Self {
        Self {
            pending: Pending(None),
            value,
        }
    }

    /// `value` may be read once `wait` has returned.
    pub fn new(value: T, wait: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self {
            pending: Pending(Some(Box::new(wait))),
            value,
        }
    }

    /// What it gave. On a device this orders what comes after, and does not wait on the host.
    ///
    /// # Errors
    /// A rank or the device failed.
    pub fn wait(mut self) -> Result<T> {
        self.pending.wait()?;
        Ok(self.value)
    }
}
