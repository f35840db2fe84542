//! Every rank's recorded calls against clocks: who waits for whom, and when the last is done.
//!
//! A call of a group begins when its last member has come, and after the group's call before it; one that was only begun goes on
//! beside its members' work, which it does not slow down. A message is on its way while its sender goes on. Ranks that are not
//! recorded are taken to behave like those that are, so one rank a stage is enough to see the pipeline.

use super::record::{Event, Recorded};
use std::collections::{BTreeSet, HashMap};

/// A stretch of time in which a rank was busy between two messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// Seconds since the step began.
    pub from: f64,
    /// The same.
    pub to: f64,
}

/// What a replay shows of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTime {
    /// Which rank.
    pub rank: usize,
    /// When it was done.
    pub end_s: f64,
    /// Computing.
    pub compute_s: f64,
    /// Exchanging with its groups, with no work beside it.
    pub exchange_s: f64,
    /// Waiting for another stage's message: the pipeline's bubble.
    pub bubble_s: f64,
    /// Waiting for members of its groups.
    pub wait_s: f64,
    /// For a picture.
    pub busy: Vec<Busy>,
}

/// What a replay shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When the last rank was done.
    pub step_s: f64,
    /// Of every recorded rank.
    pub ranks: Vec<RankTime>,
    /// Why it came to a halt, if it did: ranks that wait for each other for ever.
    pub halted: Option<String>,
}

impl Outcome {
    /// Share of all ranks' time spent waiting for other stages.
    pub fn bubble(&self) -> f64 {
        self.share(|rank| rank.bubble_s)
    }

    /// Share of all ranks' time spent exchanging, with no work beside it.
    pub fn exchanging(&self) -> f64 {
        self.share(|rank| rank.exchange_s)
    }

    fn share(&self, of: impl Fn(&RankTime) -> f64) -> f64 {
        let sum: f64 = self.ranks.iter().map(of).sum();
        sum / (self.step_s * self.ranks.len() as f64).max(f64::MIN_POSITIVE)
    }
}

#[derive(Default)]
struct Meeting {
    latest: f64,
    /// Who has come; with a number, to begin only.
    members: Vec<(usize, Option<u64>)>,
}

/// When a call of a group went on, once all its members had come.
#[derive(Clone, Copy, Default)]
struct Span {
    from: f64,
    to: f64,
}

impl RankTime {
    /// The rank has nothing to do until a call is over.
    fn wait_for(&mut self, call: Span) {
        self.wait_s += (call.from - self.end_s).max(0.0);
        self.exchange_s += (call.to - self.end_s.max(call.from)).max(0.0);
        self.end_s = self.end_s.max(call.to);
    }
}

/// `members` gives each group's size; where fewer ranks than these are recorded, those count as all.
pub fn replay(recorded: &[Recorded], members: &[(String, usize)]) -> Outcome {
    let mut present = vec![0usize; members.len()];
    for rank in recorded {
        let mut seen = vec![false; members.len()];
        for event in &rank.events {
            if let Event::Meet { group, .. } | Event::Begin { group, .. } = event {
                seen[*group as usize] = true;
            }
        }
        for (present, seen) in present.iter_mut().zip(seen) {
            *present += usize::from(seen);
        }
    }
    let place: HashMap<usize, usize> = recorded.iter().map(|r| r.rank).zip(0..).collect();
    let mut times: Vec<RankTime> = recorded
        .iter()
        .map(|r| RankTime {
            rank: r.rank,
            ..RankTime::default()
        })
        .collect();
    let mut next = vec![0usize; recorded.len()];
    let mut calls: Vec<HashMap<u32, u32>> = vec![HashMap::new(); recorded.len()];
    let mut meetings: HashMap<(u32, u32), Meeting> = HashMap::new();
    // By rank and group: when its last call is over, and what has been begun.
    let mut over: HashMap<(usize, u32), f64> = HashMap::new();
    let mut begun: HashMap<(usize, u32, u64), Span> = HashMap::new();
    let mut waiting_begun: BTreeSet<(usize, u32, u64)> = BTreeSet::new();
    let mut mail: HashMap<(u32, u32, u64), f64> = HashMap::new();
    let mut since = vec![0.0; recorded.len()];
    let mut ready: Vec<usize> = (0..recorded.len()).rev().collect();
    let mut waiting_mail: HashMap<(u32, u32, u64), usize> = HashMap::new();
    while let Some(i) = ready.pop() {
        let me = recorded[i].rank as u32;
        while let Some(event) = recorded[i].events.get(next[i]) {
            let time = &mut times[i];
            match *event {
                Event::Compute(seconds) => {
                    time.compute_s += seconds;
                    time.end_s += seconds;
                }
                Event::Send { to, tag, seconds } => {
                    let key = (me, to, tag);
                    mail.insert(key, time.end_s + seconds);
                    if let Some(receiver) = waiting_mail.remove(&key) {
                        ready.push(receiver);
                    }
                }
                Event::Recv { from, tag } => {
                    let key = (from, me, tag);
                    match mail.remove(&key) {
                        Some(arrives) => {
                            if time.end_s > since[i] {
                                time.busy.push(Busy {
                                    from: since[i],
                                    to: time.end_s,
                                });
                            }
                            time.bubble_s += (arrives - time.end_s).max(0.0);
                            time.end_s = time.end_s.max(arrives);
                            since[i] = time.end_s;
                        }
                        None if place.contains_key(&(from as usize)) => {
                            waiting_mail.insert(key, i);
                            break;
                        }
                        None => {}
                    }
                }
                Event::Wait { group, number } => {
                    let Some(call) = begun.remove(&(i, group, number)) else {
                        waiting_begun.insert((i, group, number));
                        break;
                    };
                    time.wait_for(call);
                }
                Event::Meet { group, seconds } | Event::Begin { group, seconds, .. } => {
                    let begins = match *event {
                        Event::Begin { number, .. } => Some(number),
                        _ => None,
                    };
                    let number = calls[i].entry(group).or_default();
                    let key = (group, *number);
                    *number += 1;
                    next[i] += 1;
                    let free = over.get(&(i, group)).copied().unwrap_or_default();
                    let meeting = meetings.entry(key).or_default();
                    meeting.latest = meeting.latest.max(time.end_s).max(free);
                    meeting.members.push((i, begins));
                    if meeting.members.len() < present[group as usize] {
                        if begins.is_some() {
                            continue;
                        }
                        break;
                    }
                    let Meeting { latest, members } = meetings.remove(&key).unwrap_or_default();
                    let call = Span {
                        from: latest,
                        to: latest + seconds,
                    };
                    for (member, begins) in members {
                        over.insert((member, group), call.to);
                        match begins {
                            None => {
                                times[member].wait_for(call);
                                if member != i {
                                    ready.push(member);
                                }
                            }
                            Some(number) => {
                                let key = (member, group, number);
                                begun.insert(key, call);
                                if waiting_begun.remove(&key) {
                                    ready.push(member);
                                }
                            }
                        }
                    }
                    continue;
                }
            }
            next[i] += 1;
        }
    }
    let unfinished = (0..recorded.len()).filter(|&i| next[i] < recorded[i].events.len());
    let in_meetings = meetings
        .values()
        .flat_map(|m| m.members.iter().map(|member| member.0));
    let stuck: BTreeSet<usize> = unfinished.chain(in_meetings).collect();
    let halted = (!stuck.is_empty()).then(|| {
        let at = |i: &usize| format!("rank {} at call {}", recorded[*i].rank, next[*i]);
        stuck.iter().map(at).collect::<Vec<_>>().join(", ")
    });
    for (i, time) in times.iter_mut().enumerate() {
        if time.end_s > since[i] {
            time.busy.push(Busy {
                from: since[i],
                to: time.end_s,
            });
        }
    }
    Outcome {
        step_s: times.iter().map(|t| t.end_s).fold(0.0, f64::max),
        ranks: times,
        halted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::record::Memory;

    fn rank(rank: usize, events: Vec<Event>) -> Recorded {
        Recorded {
            rank,
            events,
            memory: Memory::default(),
            micro_batches: 1,
            flops: 0.0,
            sent: Default::default(),
            calls: 0,
        }
    }

    #[test]
    fn a_group_begins_with_its_last_member_and_a_message_does_not_hold_its_sender() {
        let meet = Event::Meet {
            group: 0,
            seconds: 0.5,
        };
        let send = Event::Send {
            to: 1,
            tag: 3,
            seconds: 0.25,
        };
        let recv = Event::Recv { from: 0, tag: 3 };
        let ranks = [
            rank(
                0,
                vec![Event::Compute(2.0), send, Event::Compute(1.0), meet],
            ),
            rank(1, vec![recv, Event::Compute(4.0), meet]),
        ];
        let outcome = replay(&ranks, &[("tp".into(), 2)]);
        assert_eq!(outcome.halted, None);
        let [a, b] = &outcome.ranks[..] else {
            panic!("two ranks");
        };
        // Rank 1 starts at 2.25 and comes to the meeting at 6.25.
        assert_eq!((a.wait_s, b.wait_s), (3.25, 0.0));
        assert_eq!((a.bubble_s, b.bubble_s), (0.0, 2.25));
        assert_eq!((outcome.step_s, a.end_s), (6.75, 6.75));
        assert_eq!(
            b.busy,
            [Busy {
                from: 2.25,
                to: 6.75
            }]
        );
    }

    #[test]
    fn what_is_begun_goes_on_beside_work_and_only_the_rest_is_waited_for() {
        let begin = |number, seconds| Event::Begin {
            group: 0,
            seconds,
            number,
        };
        let wait = |number| Event::Wait { group: 0, number };
        // The second call goes after the first, from 2 to 5; the third has no work beside it.
        let calls = vec![
            begin(0, 2.0),
            begin(1, 3.0),
            Event::Compute(4.0),
            wait(0),
            wait(1),
        ];
        let meet = Event::Meet {
            group: 0,
            seconds: 0.5,
        };
        let early = rank(0, [calls.clone(), vec![meet]].concat());
        let late = rank(1, [calls, vec![Event::Compute(1.0), meet]].concat());
        let outcome = replay(&[early, late], &[("tp".into(), 2)]);
        assert_eq!(outcome.halted, None);
        let [a, b] = &outcome.ranks[..] else {
            panic!("two ranks");
        };
        assert_eq!((a.exchange_s, a.wait_s, a.end_s), (1.5, 1.0, 6.5));
        assert_eq!((b.exchange_s, b.wait_s, b.end_s), (1.5, 0.0, 6.5));
    }

    #[test]
    fn a_rank_that_waits_for_what_nobody_else_began_is_named() {
        let begin = Event::Begin {
            group: 0,
            seconds: 1.0,
            number: 0,
        };
        let wait = Event::Wait {
            group: 0,
            number: 0,
        };
        let forgetful = rank(1, vec![Event::Recv { from: 0, tag: 0 }, begin]);
        let ranks = [rank(0, vec![begin, wait]), forgetful];
        let halted = replay(&ranks, &[("tp".into(), 2)]).halted.unwrap();
        assert!(
            halted.contains("rank 0") && halted.contains("rank 1"),
            "{halted}"
        );
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_named() {
        let recv = |from| Event::Recv { from, tag: 0 };
        let ranks = [rank(0, vec![recv(1)]), rank(1, vec![recv(0)])];
        let halted = replay(&ranks, &[]).halted.unwrap();
        assert!(
            halted.contains("rank 0") && halted.contains("rank 1"),
            "{halted}"
        );
    }
}
