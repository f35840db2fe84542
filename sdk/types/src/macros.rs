//! What every guest crate writes around its own bindings: the types are the crate's, so the code must be too.
#![allow(
    clippy::crate_in_macro_def,
    reason = "the bindings are those of the crate that calls"
)]

/// Conversions of errors both ways, and the log, for bindings that lie in `$bindings`.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions {
    ($bindings:ident) => {
        $crate::conversions!(@codes $bindings:
            InvalidInput, InvalidGold, Denied, LimitExceeded, TimedOut, Cancelled, Unavailable, Internal, Other
        );
    };
    (@codes $bindings:ident: $($code:ident),*) => {
        impl From<$crate::Error> for crate::$bindings::slime::plugin::types::Error {
            fn from(error: $crate::Error) -> Self {
                use crate::$bindings::slime::plugin::types::ErrorCode;
                let code = match error.code {
                    $($crate::ErrorCode::$code => ErrorCode::$code),*
                };
                Self { code, message: error.message, detail: error.detail }
            }
        }

        /// The host's error as the crate's.
        #[allow(dead_code, reason = "not every world is given errors")]
        pub(crate) fn error(error: crate::$bindings::slime::plugin::types::Error) -> $crate::Error {
            use crate::$bindings::slime::plugin::types::ErrorCode;
            let code = match error.code {
                $(ErrorCode::$code => $crate::ErrorCode::$code),*
            };
            $crate::Error { code, message: error.message, detail: error.detail }
        }
    };
}

/// `log`, for a world that imports it.
#[doc(hidden)]
#[macro_export]
macro_rules! logging {
    ($bindings:ident) => {
        pub(crate) fn log(level: $crate::Level, message: &str) {
            use crate::$bindings::slime::plugin::log::{Level, log};
            let level = match level {
                $crate::Level::Trace => Level::Trace,
                $crate::Level::Debug => Level::Debug,
                $crate::Level::Info => Level::Info,
                $crate::Level::Warn => Level::Warn,
                $crate::Level::Error => Level::Error,
            };
            log(level, message);
        }
    };
}

/// `Finished` around the host's handle.
#[doc(hidden)]
#[macro_export]
macro_rules! finished {
    ($bindings:ident) => {
        /// One finished rollout, to be read and not changed.
        pub struct Finished(crate::$bindings::slime::plugin::rollouts::Finished);

        impl From<crate::$bindings::slime::plugin::rollouts::Finished> for Finished {
            fn from(handle: crate::$bindings::slime::plugin::rollouts::Finished) -> Self {
                Self(handle)
            }
        }

        impl Finished {
            /// The prompt as text; of a conversation, the last user message.
            pub fn prompt(&self) -> String {
                self.0.prompt()
            }

            /// What the policy wrote, special tokens left out.
            pub fn response(&self) -> String {
                self.0.response()
            }

            /// The gold answer, where the row has one.
            pub fn label(&self) -> Option<String> {
                self.0.label()
            }

            /// One member of the prompt's metadata, as a JSON document.
            pub fn metadata(&self, key: &str) -> Option<String> {
                self.0.metadata(key)
            }

            /// All metadata, as a JSON object.
            pub fn metadata_json(&self) -> String {
                self.0.metadata_json()
            }

            /// Why the last turn ended.
            pub fn finish_reason(&self) -> Option<$crate::FinishReason> {
                use crate::$bindings::slime::plugin::types::FinishReason;
                self.0.finish_reason().map(|reason| match reason {
                    FinishReason::Stop => $crate::FinishReason::Stop,
                    FinishReason::Length => $crate::FinishReason::Length,
                    FinishReason::Abort => $crate::FinishReason::Abort,
                })
            }
        }
    };
}

/// `Group` around the host's handle.
#[doc(hidden)]
#[macro_export]
macro_rules! group {
    ($bindings:ident) => {
        /// All rollouts of one prompt, in order of their index.
        pub struct Group(crate::$bindings::slime::plugin::groups::Group);

        impl From<crate::$bindings::slime::plugin::groups::Group> for Group {
            fn from(handle: crate::$bindings::slime::plugin::groups::Group) -> Self {
                Self(handle)
            }
        }

        impl Group {
            /// Number of rollouts.
            pub fn size(&self) -> u32 {
                self.0.size()
            }

            /// The rollout at `index`.
            pub fn get(&self, index: u32) -> Option<Finished> {
                self.0.get(index).map(Finished::from)
            }

            /// Its reward; `None` where it was not scored, which is not the same as 0.
            pub fn reward(&self, index: u32) -> Option<f64> {
                self.0.reward(index)
            }

            /// How its scoring ended, by name.
            pub fn outcome(&self, index: u32) -> String {
                self.0.outcome(index)
            }

            /// Every rollout, in order.
            pub fn rollouts(&self) -> Vec<Finished> {
                (0..self.size())
                    .filter_map(|index| self.get(index))
                    .collect()
            }

            /// Every reward, in order.
            pub fn rewards(&self) -> Vec<Option<f64>> {
                (0..self.size()).map(|index| self.reward(index)).collect()
            }
        }
    };
}
