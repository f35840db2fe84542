//! The worlds that read a whole group.

mod filter {
    use slime_sdk_filter::{Decision, Error, Filter, Group, export};

    struct Contract;

    impl Filter for Contract {
        fn decide(group: Group) -> Result<Decision, Error> {
            let prompts: Vec<String> = group.rollouts().iter().map(|item| item.prompt()).collect();
            if prompts.iter().any(|prompt| prompt == "fail") {
                return Err(Error::other("no opinion"));
            }
            let rewards: Vec<f64> = group.rewards().into_iter().flatten().collect();
            let (most, least) = rewards
                .iter()
                .fold((f64::MIN, f64::MAX), |(a, b), r| (a.max(*r), b.min(*r)));
            Ok(if most > least {
                Decision::Keep
            } else {
                Decision::Drop("one-sided".into())
            })
        }
    }

    export!(Contract);
}

mod shaper {
    use slime_sdk_shaper::{Error, Group, Shaper, export};

    struct Contract;

    impl Shaper for Contract {
        fn shape(group: Group) -> Result<Vec<Option<f64>>, Error> {
            let items = group.rollouts();
            let mut shaped: Vec<Option<f64>> = items
                .iter()
                .zip(group.rewards())
                .map(|(item, reward)| Some(reward? - item.response().len() as f64 / 8.0))
                .collect();
            if items.iter().any(|item| item.prompt() == "short-list") {
                shaped.pop();
            }
            Ok(shaped)
        }
    }

    export!(Contract);
}

mod verifier {
    use slime_sdk_group_verifier::{Error, Group, GroupVerifier, Verdict, export};

    struct Contract;

    impl GroupVerifier for Contract {
        fn score(group: Group) -> Result<Vec<Result<Verdict, Error>>, Error> {
            let items = group.rollouts();
            let lengths: Vec<usize> = items.iter().map(|item| item.response().len()).collect();
            let least = lengths.iter().min().copied();
            let mut scores: Vec<Result<Verdict, Error>> = lengths
                .iter()
                .map(|n| Ok(Verdict::reward(f64::from(Some(*n) == least))))
                .collect();
            if items.iter().any(|item| item.prompt() == "short-list") {
                scores.pop();
            }
            Ok(scores)
        }
    }

    export!(Contract);
}
