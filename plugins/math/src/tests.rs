//! The failure cases of public graders (reference section B), each with what is right here and why.

use crate::Math;
use slime_sdk_verifier::{ErrorCode, Finished, Verifier};

fn reward(gold: &str, answer: &str) -> f64 {
    let response = format!("Let me think. So the answer is $\\boxed{{{answer}}}$.");
    Math::score(Finished::new("", response).with_label(gold))
        .unwrap_or_else(|error| panic!("{gold}: {error}"))
        .reward
}

#[track_caller]
fn same(pairs: &[(&str, &str)]) {
    for (gold, answer) in pairs {
        assert_eq!(reward(gold, answer), 1.0, "gold {gold}, answer {answer}");
    }
}

#[track_caller]
fn different(pairs: &[(&str, &str)]) {
    for (gold, answer) in pairs {
        assert_eq!(reward(gold, answer), 0.0, "gold {gold}, answer {answer}");
    }
}

fn score(response: &str, gold: &str) -> Result<f64, ErrorCode> {
    Math::score(Finished::new("", response).with_label(gold))
        .map(|verdict| verdict.reward)
        .map_err(|error| error.code)
}

#[test]
fn b01_b04_fractions_are_equal_however_they_are_written() {
    same(&[
        ("2/3", r"\frac{2}{3}"),
        (r"\frac{1}{2}", r"\frac12"),
        (r"\frac12", r"\dfrac{1}{2}"),
        ("1/2", "0.5"),
        ("0.25", r"\tfrac{1}{4}"),
        ("-1/2", r"-\frac{1}{2}"),
        ("-1/2", r"\frac{-1}{2}"),
        ("2/4", "1/2"),
        ("3", "3.0"),
    ]);
    different(&[
        ("1/3", "0.333"),
        ("2/3", "3/2"),
        (r"\frac{1}{2}", r"\frac{1}{3}"),
    ]);
}

#[test]
fn b02_b03_the_last_box_wins_and_numbers_in_prose_do_not_leak_in() {
    assert_eq!(
        score(r"…\boxed{840}. Check. Final: \boxed{840}", "840"),
        Ok(1.0)
    );
    assert_eq!(score(r"\boxed{3} … \boxed{4}", "4"), Ok(1.0));
    assert_eq!(score(r"\boxed{3} … \boxed{4}", "3"), Ok(0.0));
    assert_eq!(
        score(r"There are 2,552,004 ways, so \boxed{004}", "4"),
        Ok(1.0)
    );
}

#[test]
fn b05_mixed_numbers_are_sums() {
    same(&[
        ("1 1/4", "5/4"),
        ("5/4", "1 1/4"),
        (r"2\frac{1}{2}", "2.5"),
        ("2.5", r"2\frac12"),
        ("-1 1/4", "-5/4"),
        ("2½", "2.5"),
    ]);
    different(&[(r"2\frac{1}{2}", "1"), ("12", "1 2")]);
}

#[test]
fn b06_nothing_is_fished_out_of_what_does_not_parse() {
    different(&[
        (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
        ("4", r"4\sqrt(2)"),
        (r"4\sqrt(2)", "4"),
        ("42", r"42 \unknown"),
        ("5", "5 +"),
        ("5", "about 5 or so?"),
        ("1", "1/0"),
        (r"\infty", "1/0 + x"),
        (r"\infty", "5"),
    ]);
    same(&[
        (r"1-\frac{1}{\mathrm{e}}", r"1-\frac1e"),
        (r"4\sqrt(2)", r"4\sqrt{2}"),
    ]);
}

#[test]
fn b08_a_unit_in_the_label_must_match_and_another_is_ignored() {
    same(&[
        ("35", r"35\text{ cm}"),
        (r"35\text{ cm}", r"35 \mathrm{cm}"),
        (r"35\text{ cm}", "35 cm"),
        (r"12 \text{ cm}^2", r"12\text{ cm}^2"),
        (r"12 \text{ cm}^2", r"12\,\mathrm{cm}^{2}"),
        ("90", r"90^\circ"),
        (r"90^\circ", "90°"),
        (r"90^{\circ}", r"90 \text{ degrees}"),
        (r"\$35", "35"),
        ("5 apples", r"5\text{ apple}"),
        (r"35\text{ m}", "35 m"),
        ("35", "35 cm"),
    ]);
    different(&[
        (r"35\text{ m}", r"35\text{ cm}"),
        (r"35\text{ cm}", "35"),
        (r"12\text{ cm}^2", r"12\text{ cm}^3"),
        (r"35\text{ cm}", r"36\text{ cm}"),
        ("35", "35x"),
        (r"35\text{ m}", "35x"),
    ]);
}

#[test]
fn b09_groups_of_three_are_a_number_and_other_commas_make_a_list() {
    same(&[
        ("2552004", "2,552,004"),
        ("2,552,004", "2552004"),
        ("1234", r"1{,}234"),
        ("1234", r"1\,234"),
        ("1,2,3", "1, 2, 3"),
        ("1,2,3", "3, 2, 1"),
    ]);
    different(&[
        ("23", "2,3"),
        ("123", "1,2,3"),
        ("1,2,3", "1,2"),
        ("1,234", "(1,234)"),
    ]);
}

#[test]
fn b10_a_percentage_is_a_hundredth() {
    same(&[
        (r"7.41\%", r"7.41\%"),
        ("0.5", r"50\%"),
        (r"50\%", "0.5"),
        (r"50\%", r"\frac12"),
        ("50%", r"50\%"),
    ]);
    different(&[("50", r"50\%"), (r"50\%", "50"), (r"7.41\%", "7.41")]);
}

#[test]
fn b11_symbols_are_positive_reals_and_quantified_claims_are_not_equations() {
    same(&[
        (r"\sqrt{1/n}", r"1/\sqrt{n}"),
        ("(x+1)^2", "x^2+2x+1"),
        ("ab", "ba"),
        ("2x+3", "3+2x"),
        (r"\sin^2 x", "1-\\cos^2 x"),
    ]);
    different(&[
        ("f(x)=0", r"\forall x>0, f(x)=0"),
        ("x^2", "x^3"),
        ("x", "y"),
        ("x+1", "x-1"),
    ]);
}

#[test]
fn b13_slow_input_gives_the_same_from_every_thread() {
    let nested = format!("{}2{}", r"\sqrt{1+".repeat(500), "}".repeat(500));
    let response = format!("\\boxed{{{nested}}}");
    // The limit of the sequence is the golden ratio, reached to the last bit long before 500 radicals.
    let golden = r"\frac{1+\sqrt{5}}{2}";
    let workers: Vec<_> = (0..32)
        .map(|i| {
            let response = response.clone();
            let work = move || {
                if i % 2 == 0 {
                    score(&response, golden)
                } else {
                    score(r"\boxed{5}", "5")
                }
            };
            std::thread::Builder::new()
                .stack_size(16 << 20)
                .spawn(work)
                .unwrap()
        })
        .collect();
    for worker in workers {
        assert_eq!(worker.join().unwrap(), Ok(1.0));
    }
    let deeper = format!(
        "\\boxed{{{}2{}}}",
        r"\sqrt{1+".repeat(5_000),
        "}".repeat(5_000)
    );
    assert_eq!(
        score(&deeper, golden),
        Ok(0.0),
        "too deep to read is unread, not a crash"
    );
}

#[test]
fn b14_naming_the_unknown_or_not_is_the_same_both_ways() {
    same(&[
        ("x=5", "5"),
        ("5", "x=5"),
        ("(0,12.5)", "0<x<12.5"),
        ("0<x<12.5", "(0,12.5)"),
        (r"[3,\infty)", r"x\ge 3"),
        (r"x \le 3", r"(-\infty, 3]"),
        ("y=2x+1", "y = 1 + 2x"),
        ("f(x)=x^2", "x^2"),
        ("x+y=5", "5=y+x"),
    ]);
    different(&[("(0,12.5)", r"0\le x<12.5"), ("x=5", "x=6"), ("x>3", "x<3")]);
}

#[test]
fn b15_a_label_that_is_no_answer_is_never_a_reward() {
    for gold in [
        "",
        " ",
        "None",
        "none",
        "nan",
        "null",
        r"\boxed{}",
        r"\unknown{3}",
        "3 +",
        r"\frac{1}",
    ] {
        for response in [
            "",
            "None",
            r"\emptyset",
            r"\boxed{None}",
            r"\boxed{}",
            r"\boxed{\emptyset}",
        ] {
            assert_eq!(
                score(response, gold),
                Err(ErrorCode::InvalidGold),
                "gold {gold:?}, response {response:?}"
            );
        }
    }
    let without = Math::score(Finished::new("", r"\boxed{1}")).unwrap_err();
    assert_eq!(without.code, ErrorCode::InvalidGold);
    same(&[(r"\emptyset", r"\varnothing"), (r"\emptyset", r"\{\}")]);
}

#[test]
fn b17_an_answer_extracted_twice_is_the_same() {
    assert_eq!(score(r"\boxed{5}", r"\boxed{5}"), Ok(1.0));
    assert_eq!(score(r"\boxed{\boxed{5}}", "5"), Ok(1.0));
}

#[test]
fn b18_long_integers_are_compared_to_the_last_digit() {
    let long = "7".repeat(159);
    let off = format!("{}8", "7".repeat(158));
    same(&[(&long, &long)]);
    different(&[(&long, &off)]);
}

#[test]
fn b19_a_list_of_rollouts_gives_each_its_own_score() {
    let responses = [
        r"\boxed{137}",
        r"\boxed{1+}",
        r"\boxed{137}",
        r"\boxed{",
        r"\boxed{1}",
    ];
    let rewards: Vec<_> = responses
        .iter()
        .map(|response| score(response, "137").unwrap())
        .collect();
    assert_eq!(rewards, [1.0, 0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn b20_code_is_no_answer() {
    let file = std::path::Path::new("pwned");
    assert_eq!(
        score(r#"\boxed{__import__("os").system("touch pwned")}"#, "0"),
        Ok(0.0)
    );
    assert!(!file.exists());
}

#[test]
fn b21_other_boxes_count_too() {
    assert_eq!(score(r"\fbox{42}", "42"), Ok(1.0));
    assert_eq!(score(r"$\boxed 7$", "7"), Ok(1.0));
    assert_eq!(score(r"\boxed {7}", "7"), Ok(1.0));
}

#[test]
fn b29_nested_braces_are_read_and_unbalanced_ones_are_no_answer() {
    same(&[
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        (r"\sqrt{8}", r"2\sqrt2"),
        (r"\sqrt[3]{8}", "2"),
    ]);
    let verdict = Math::score(Finished::new("", r"\boxed{42").with_label("42")).unwrap();
    assert_eq!(
        (verdict.reward, &verdict.metrics[0]),
        (0.0, &("answered".to_owned(), 0.0))
    );
}

#[test]
fn b31_a_stop_token_glued_to_the_answer_does_not_count() {
    assert_eq!(score(r"\boxed{42}<|im_end|>", "42"), Ok(1.0));
    assert_eq!(score("Answer: 42<|im_end|>", "42"), Ok(1.0));
}

#[test]
fn b35_tuples_have_an_order_and_sets_have_none() {
    same(&[
        ("(1,2)", "(1, 2)"),
        (r"\{1,2\}", r"\{2,1\}"),
        (r"\{1,2\}", "1, 2"),
        (r"\{1,2\}", r"\{1,2,2\}"),
        ("n=2,3,4", "n=2,3,4"),
        ("x=2 \\text{ or } x=3", "3, 2"),
        (r"\pm 3", "3, -3"),
        (r"(-\infty,1)\cup(2,3]", r"(2,3]\cup(-\infty,1)"),
        (r"\left(\frac{1}{2}, 3\right)", "(0.5,3)"),
    ]);
    different(&[
        ("(1,2)", "(2,1)"),
        ("[0,1)", "[0,1]"),
        ("n=2,3,4", "n=1,2,3"),
        ("(1,2)", "[1,2]"),
        (r"\pm 3", "3"),
        (r"\{1,2\}", r"\{1,2,3\}"),
        ("1,2", "1,2,2"),
    ]);
}

#[test]
fn b36_digits_and_signs_of_other_scripts_are_read() {
    same(&[
        ("-5", "\u{2212}5"),
        ("12", "\u{ff11}\u{ff12}"),
        (r"5\pi", "5*pi"),
        (r"5\pi", "5π"),
        ("1000", "10^{3}"),
        ("1000", "1e3"),
        ("1000", r"10^3"),
        ("x^2", "x²"),
        ("1/2", "½"),
    ]);
    different(&[("1/3", "0.333"), (r"\pi", "3.14"), ("-5", "5")]);
}

#[test]
fn b37_any_kind_of_label_is_graded() {
    same(&[
        ("1/2", "0.5"),
        ("5/4", "1.25"),
        ("x", "x"),
        (r"\text{Monday}", "Monday"),
        ("no solution", r"\text{No solution}"),
    ]);
    same(&[
        ("(B)", "B"),
        ("B", r"\text{(B)}"),
        ("A", r"\textbf{A}"),
        ("1010_2", "1010_{2}"),
    ]);
    same(&[
        (
            r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
            r"\begin{bmatrix}1\\2\end{bmatrix}",
        ),
        ("5!", "120"),
        ("|{-3}|", "3"),
    ]);
    different(&[
        (r"\text{Monday}", "Tuesday"),
        ("B", "A"),
        ("1010_2", "1010"),
        ("1010", "1010_2"),
        ("52_8", "52_9"),
    ]);
}

/// Pairs on which math-verify and sympy agree; `oracle/make_pairs.py` makes them.
#[test]
fn pairs_that_two_oracles_agree_on_are_graded_as_they_say() {
    let field = |line: &str, name: &str| {
        let at = line.find(&format!("\"{name}\": \"")).unwrap() + name.len() + 5;
        let end = at + line[at..].find("\", \"").unwrap();
        line[at..end].replace("\\\\", "\\")
    };
    let (mut count, mut wrong) = (0, Vec::new());
    for line in include_str!("../oracle/pairs.jsonl").lines() {
        let (gold, answer) = (field(line, "gold"), field(line, "answer"));
        let equal = line.ends_with("\"equal\": true}");
        let item = Finished::new("", format!("So it is $\\boxed{{{answer}}}$.")).with_label(&*gold);
        count += 1;
        match Math::score(item) {
            Ok(verdict) if verdict.reward == f64::from(equal) => {}
            other => wrong.push(format!("{gold} | {answer} | {equal}: {other:?}")),
        }
    }
    assert!(count >= 500, "{count}");
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
