//! Puzzles with relations.

use crate::tasks::Puzzle;
use slime_sdk_source::Random;

const NAMES: [&str; 10] = [
    "Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gil", "Hana", "Ivo", "Jo",
];

/// What a Boolean expression comes to.
pub(crate) fn boolean(random: &mut Random, level: u64) -> Puzzle {
    let (text, value) = expression(random, level + 1);
    Puzzle {
        question: format!("Is this true or false: {text}?"),
        answer: value.to_string(),
    }
}

fn expression(random: &mut Random, depth: u64) -> (String, bool) {
    if depth == 0 {
        let (a, b) = (random.within(0, 20), random.within(0, 20));
        return match random.below(3) {
            0 => (format!("{a} < {b}"), a < b),
            1 => (format!("{a} > {b}"), a > b),
            _ => (format!("{a} = {b}"), a == b),
        };
    }
    if random.below(5) == 0 {
        let (text, value) = expression(random, depth - 1);
        return (format!("not ({text})"), !value);
    }
    let (left, a) = expression(random, depth - 1);
    let (right, b) = expression(random, random.clone().below(depth));
    if random.below(2) == 0 {
        (format!("({left}) and ({right})"), a && b)
    } else {
        (format!("({left}) or ({right})"), a || b)
    }
}

/// Who stands where, from what is said of neighbours.
pub(crate) fn order(random: &mut Random, level: u64) -> Puzzle {
    let count = 3 + level.min(4) as usize;
    let people = shuffled(random, &NAMES)[..count].to_vec();
    let says: Vec<String> = people
        .windows(2)
        .map(|pair| format!("{} is older than {}.", pair[0], pair[1]))
        .collect();
    let says = shuffled(random, &says).join(" ");
    let at = random.below(count as u64) as usize;
    let place = [
        "oldest",
        "second oldest",
        "third oldest",
        "fourth oldest",
        "fifth oldest",
        "sixth oldest",
        "seventh oldest",
    ][at];
    Puzzle {
        question: format!("{says} Who is the {place}?"),
        answer: people[at].to_owned(),
    }
}

/// A way through one-way streets: any that is one counts.
pub(crate) fn path(random: &mut Random, level: u64) -> Puzzle {
    let nodes: Vec<char> = shuffled(random, &('A'..='P').collect::<Vec<_>>());
    let length = 2 + level as usize;
    let way = &nodes[..=length];
    let mut streets: Vec<(char, char)> = way.windows(2).map(|pair| (pair[0], pair[1])).collect();
    for _ in 0..2 * (level as usize + 1) {
        let pick = |random: &mut Random| nodes[random.below(4 + 2 * level) as usize];
        let (from, to) = (pick(random), pick(random));
        if from != to && !streets.contains(&(from, to)) {
            streets.push((from, to));
        }
    }
    let streets: Vec<String> = shuffled(random, &streets)
        .iter()
        .map(|(from, to)| format!("{from}>{to}"))
        .collect();
    let text = |way: &[char]| {
        way.iter()
            .map(char::to_string)
            .collect::<Vec<_>>()
            .join(">")
    };
    Puzzle {
        question: format!(
            "One-way streets: {}. Give a way from {} to {}, written like A>B>C.",
            streets.join(" "),
            way[0],
            way[length]
        ),
        answer: text(way),
    }
}

/// Whether a way starts and ends where it should and uses streets that are there.
pub(crate) fn walks(question: &str, gold: &str, answer: &str) -> bool {
    let Some(streets) = question
        .strip_prefix("One-way streets: ")
        .and_then(|rest| rest.split_once(". Give"))
    else {
        return false;
    };
    let streets: Vec<&str> = streets.0.split(' ').collect();
    let answer: String = answer.chars().filter(|c| !c.is_whitespace()).collect();
    let nodes: Vec<&str> = answer.trim_end_matches('.').split('>').collect();
    let ends: Vec<&str> = gold.split('>').collect();
    nodes.len() > 1
        && nodes.len() <= 64
        && nodes.first() == ends.first()
        && nodes.last() == ends.last()
        && nodes
            .windows(2)
            .all(|pair| streets.contains(&format!("{}>{}", pair[0], pair[1]).as_str()))
}

fn shuffled<T: Clone>(random: &mut Random, items: &[T]) -> Vec<T> {
    let mut items = items.to_vec();
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_way_along_the_streets_counts_and_no_other() {
        let question =
            "One-way streets: A>B B>C C>D A>D. Give a way from A to D, written like A>B>C.";
        assert!(walks(question, "A>B>C>D", "A>D"));
        assert!(walks(question, "A>B>C>D", "A > B > C > D."));
        for wrong in ["D>A", "A>C>D", "A", "A>B", "A>B>D", "B>C>D", ""] {
            assert!(!walks(question, "A>B>C>D", wrong), "{wrong}");
        }
    }
}
