//! Looking after members: one that stopped answering goes out of routing, one that answers again comes
//! back when it proves its version, and one that missed a publish is given the weights first.

use super::endpoint::get_weight_version::get_weight_version;
use super::{Inner, Standing, Trust, gauges};
use crate::lock;
use crate::publish::update_member;
use std::sync::Weak;

/// Look after one member until the pool is gone.
pub(super) async fn watch(pool: Weak<Inner>, index: usize) {
    loop {
        let Some(inner) = pool.upgrade() else { return };
        let interval = inner.config.probe_interval;
        look(&inner, index).await;
        if matches!(inner.members[index].standing(), Standing::Serving(_)) {
            gauges::look(&inner, index).await;
        }
        drop(inner);
        tokio::time::sleep(interval).await;
    }
}

async fn look(inner: &Inner, index: usize) {
    let member = &inner.members[index];
    let before = member.standing();
    let published = lock(&inner.published).clone();
    // Before the first publish there is nothing to prove.
    if before == Standing::Updating || (published.is_none() && inner.config.trust == Trust::Proven)
    {
        return;
    }
    // Not `/health`: a paused server holds that answer back.
    let answer = get_weight_version(&member.server).await;
    // A publish that began meanwhile decides by itself.
    if member.standing() != before {
        return;
    }
    let label = match answer {
        Ok(label) => label,
        Err(error) => {
            if member.strike(error.to_string(), error.is_gone()) {
                inner.set_standing(index, Standing::Down);
            }
            return;
        }
    };
    match (&published, inner.config.trust) {
        (_, Trust::Frozen(version)) => inner.set_standing(index, Standing::Serving(version)),
        (Some(published), _)
            if label == inner.config.label(published.version) && !member.must_reload() =>
        {
            member.praise();
            inner.set_standing(index, Standing::Serving(published.version));
        }
        (Some(published), _) => {
            tracing::info!(server = %member.server.address(), version = %published.version, label, "giving a member the weights it missed");
            update_member(inner, index, published).await;
        }
        (None, Trust::Proven) => {}
    }
}
