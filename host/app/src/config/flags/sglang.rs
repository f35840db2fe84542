//! `--sglang-X VALUE…`: flags of the servers that this program launches, handed through as `--X VALUE…`.
//!
//! SGLang has hundreds of them and gets new ones with every release, so none is known here: they are taken out of the
//! command line before it is parsed, and come back as one list. What follows such a flag belongs to it until the next
//! word that begins with `-` and is no number; write plugins before them.

use super::slime::fate;
use std::iter::Peekable;

/// `argv` with every `--sglang-X` gathered into one `--sglang-args=[…]` at its end.
pub fn gather(argv: Vec<String>) -> Vec<String> {
    let (mut rest, mut flags) = (Vec::with_capacity(argv.len()), Vec::new());
    let mut words = argv.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.push(word);
            rest.extend(words);
            break;
        }
        match theirs(&word) {
            Some(flag) => {
                let takes_more = !flag.contains('=');
                flags.push(flag);
                if takes_more {
                    values(&mut words, &mut flags);
                }
            }
            None => rest.push(word),
        }
    }
    if !flags.is_empty() {
        let list: toml::Value = flags.into();
        // Before a lone `--`: after it nothing is a flag.
        let end = rest
            .iter()
            .position(|word| word == "--")
            .unwrap_or(rest.len());
        rest.insert(end, format!("--sglang-args={list}"));
    }
    rest
}

/// The server's own name of a flag, if it is one of the server's.
fn theirs(word: &str) -> Option<String> {
    let name = word.strip_prefix("--")?;
    let bare = name.split('=').next().unwrap_or_default();
    let flag = name.strip_prefix("sglang-")?;
    let is_ours = bare == "sglang-args" || fate(bare).is_some();
    (!is_ours && !flag.is_empty()).then(|| format!("--{flag}"))
}

fn values(words: &mut Peekable<impl Iterator<Item = String>>, into: &mut Vec<String>) {
    let is_value = |word: &String| !word.starts_with('-') || word.parse::<f64>().is_ok();
    while let Some(value) = words.next_if(is_value) {
        into.push(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(line: &str) -> Vec<String> {
        gather(line.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn flags_of_servers_become_one_list_in_their_order() {
        let got = gathered(
            "slime-host run p --sglang-mem-fraction-static 0.3 --lr 1e-6 --sglang-enable-metrics --sglang-x=y --sglang-lora-paths a b --sglang-n -1 -c f",
        );
        let list = r#"--sglang-args=["--mem-fraction-static", "0.3", "--enable-metrics", "--x=y", "--lora-paths", "a", "b", "--n", "-1"]"#;
        assert_eq!(
            got,
            ["slime-host", "run", "p", "--lr", "1e-6", "-c", "f", list]
        );
    }

    #[test]
    fn flags_of_this_program_stay() {
        let line = "slime-host run p --sglang-server-concurrency 8 -- --sglang-x 1";
        assert_eq!(gathered(line).join(" "), line);
    }
}
