//! Which member serves a request: a pure function of loads and session.

use crate::seed::hash64;
use serde::{Deserialize, Serialize};

/// How requests spread over the members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// A session stays with one member (its prefix cache), unless that member carries over a quarter
    /// more than its share.
    #[default]
    Session,
    /// The member with the fewest requests; ties go round.
    LeastLoaded,
}

/// A member that may serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Its place in the pool.
    pub(super) member: usize,
    /// Requests it has been given and not finished.
    pub(super) load: usize,
}

/// Pick one of `candidates`. `turn` grows by one with every pick and settles ties.
pub(super) fn pick(
    candidates: &[Candidate],
    routing: Routing,
    session: u64,
    turn: usize,
) -> Option<usize> {
    match routing {
        Routing::LeastLoaded => least_loaded(candidates, turn),
        Routing::Session => by_session(candidates, session),
    }
}

fn least_loaded(candidates: &[Candidate], turn: usize) -> Option<usize> {
    let least = candidates.iter().map(|c| c.load).min()?;
    let tied: Vec<_> = candidates.iter().filter(|c| c.load == least).collect();
    Some(tied[turn % tied.len()].member)
}

/// Rendezvous hashing with bounded loads (arXiv:1608.01350): losing a member moves only its sessions.
fn by_session(candidates: &[Candidate], session: u64) -> Option<usize> {
    let total: usize = candidates.iter().map(|c| c.load).sum::<usize>() + 1;
    let cap = (total * 5).div_ceil(candidates.len().max(1) * 4);
    let score = |c: &Candidate| {
        hash64(
            "route",
            &[&session.to_le_bytes(), &(c.member as u64).to_le_bytes()],
        )
    };
    // Some member is always below the cap: it is above the mean load.
    candidates
        .iter()
        .filter(|c| c.load < cap)
        .max_by_key(|c| score(c))
        .map(|c| c.member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(
        n: usize,
        members: &[usize],
        routing: Routing,
        session: impl Fn(usize) -> u64,
    ) -> Vec<(usize, usize)> {
        let mut candidates: Vec<_> = members
            .iter()
            .map(|&member| Candidate { member, load: 0 })
            .collect();
        for turn in 0..n {
            let member = pick(&candidates, routing, session(turn), turn).unwrap();
            candidates
                .iter_mut()
                .find(|c| c.member == member)
                .unwrap()
                .load += 1;
        }
        candidates.iter().map(|c| (c.member, c.load)).collect()
    }

    #[test]
    fn g13_idle_members_share_requests_evenly() {
        for (_, load) in send(300, &[0, 1, 2], Routing::LeastLoaded, |_| 0) {
            assert!((99..=101).contains(&load));
        }
        for (_, load) in send(300, &[0, 1, 2], Routing::Session, |turn| turn as u64) {
            assert!((60..=126).contains(&load), "{load}");
        }
    }

    #[test]
    fn ties_go_round_when_every_request_finishes_before_the_next() {
        let idle = [0, 1, 2].map(|member| Candidate { member, load: 0 });
        let picks: Vec<_> = (0..6)
            .map(|turn| pick(&idle, Routing::LeastLoaded, 0, turn).unwrap())
            .collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn losing_a_member_moves_only_its_own_sessions() {
        let idle = |members: &[usize]| {
            members
                .iter()
                .map(|&member| Candidate { member, load: 0 })
                .collect::<Vec<_>>()
        };
        for session in 0..200 {
            let before = pick(&idle(&[0, 1, 2]), Routing::Session, session, 0).unwrap();
            let after = pick(&idle(&[0, 2]), Routing::Session, session, 0).unwrap();
            assert!(before == 1 || before == after);
            assert_eq!(
                before,
                pick(&idle(&[0, 1, 2]), Routing::Session, session, 7).unwrap()
            );
        }
    }

    #[test]
    fn one_session_with_many_requests_does_not_drown_its_member() {
        let loads = send(100, &[0, 1], Routing::Session, |_| 5);
        assert!(loads.iter().all(|&(_, load)| load <= 63), "{loads:?}");
    }

    #[test]
    fn nobody_to_pick_is_none() {
        assert_eq!(pick(&[], Routing::Session, 1, 0), None);
        assert_eq!(pick(&[], Routing::LeastLoaded, 1, 0), None);
    }
}
