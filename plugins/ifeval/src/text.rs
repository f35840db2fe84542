//! Words, sentences, paragraphs and counts, as the checks need them.

/// Words: stretches of letters, digits, `_`, apostrophes and hyphens inside.
pub(crate) fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '\'' | '’' | '-')))
        .map(|word| word.trim_matches(['\'', '-', '’']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Sentences: they end in `.`, `!` or `?` before white space, or with the text. A single letter or a common short
/// form before the stop ends none.
pub(crate) fn num_sentences(text: &str) -> u64 {
    const SHORT: [&str; 12] = [
        "mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "e.g", "i.e", "jr", "sr",
    ];
    let mut count = 0;
    let mut open = false;
    for word in text.split_whitespace() {
        open = open || word.chars().any(char::is_alphanumeric);
        let bare = word.trim_end_matches(['"', '\'', ')', ']', '*', '”', '’']);
        let Some(stem) = bare.strip_suffix(['.', '!', '?']) else {
            continue;
        };
        let stem = stem.trim_start_matches(['(', '"', '“', '*']);
        let short = bare.ends_with('.')
            && (SHORT.contains(&stem.to_lowercase().as_str())
                || (stem.len() == 1 && stem.chars().all(char::is_uppercase)));
        if open && !short {
            count += 1;
            open = false;
        }
    }
    count + u64::from(open)
}

/// How often `word` stands in `text` as a word of its own (or words), whatever its case.
pub(crate) fn occurrences(text: &str, word: &str) -> u64 {
    let (text, word) = (text.to_lowercase(), word.to_lowercase());
    if word.is_empty() {
        return 0;
    }
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(&word)
        .filter(|(at, _)| {
            !inside(text[..*at].chars().next_back())
                && !inside(text[at + word.len()..].chars().next())
        })
        .count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_words_and_occurrences_are_counted_as_people_do() {
        assert_eq!(num_sentences("Dr. Who came. He left! Did he? \"Yes.\""), 4);
        assert_eq!(num_sentences("J. Doe is here"), 1);
        assert_eq!(num_sentences(""), 0);
        assert_eq!(
            words("It's a well-known 3.5 - fact"),
            ["It's", "a", "well-known", "3", "5", "fact"]
        );
        assert_eq!(occurrences("Art, art and party; ART.", "art"), 3);
        assert_eq!(occurrences("New York, new york", "New York"), 2);
    }
}
