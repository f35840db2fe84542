//! Which cases there are.

use super::{Body, Case};
use crate::families;
use slime_kernels::{Heads, RopeStyle, Route};
use std::ops::Range;

/// Odd sizes on purpose: one row, a row more than a tile, nothing at all.
pub(crate) fn all() -> Vec<Case> {
    let mut list = Vec::new();
    let mut add = |op, body: Body| {
        let text = format!("{body:?}");
        let inner = text
            .split_once('{')
            .map_or("", |(_, rest)| rest.trim_end_matches('}').trim());
        let shape = inner
            .replace("Heads { query: ", "")
            .replace(", kv: ", "/")
            .replace(", dim: ", "x")
            .replace(" }", "");
        list.push(Case { op, shape, body });
    };
    for (rows, cols) in [(0, 64), (1, 8), (7, 64), (129, 1032), (1000, 2560)] {
        add("rows", Body::Rows { rows, cols });
    }
    for (rows, cols) in [(1, 8), (7, 72), (33, 96), (129, 1032)] {
        add("pieces", Body::Pieces { rows, cols });
    }
    for (rows, inputs, outputs) in [
        (0, 64, 64),
        (1, 64, 48),
        (7, 72, 40),
        (129, 256, 136),
        (513, 1024, 264),
    ] {
        add(
            "matmul",
            Body::Matmul {
                rows,
                inputs,
                outputs,
            },
        );
    }
    let experts: [(usize, usize, &[usize]); 6] = [
        (64, 64, &[0, 0]),
        (8, 16, &[1]),
        (72, 40, &[3, 0, 65, 1, 0]),
        (136, 264, &[129, 128, 0, 7, 300]),
        (1024, 136, &[64, 63, 200, 1]),
        (256, 512, &[1000, 24, 5, 515]),
    ];
    for (inputs, outputs, rows) in experts {
        add(
            "experts",
            Body::Experts {
                inputs,
                outputs,
                rows: rows.to_vec(),
            },
        );
    }
    for (rows, experts, top_k, groups) in [
        (0, 64, 2, None),
        (1, 8, 1, None),
        (33, 128, 8, None),
        (19, 256, 8, Some((8, 4))),
        (20, 64, 6, Some((4, 2))),
    ] {
        for (is_sigmoid, renormalise, scale) in [
            (false, true, 1.0),
            (true, true, 2.5),
            (true, false, 1.0),
            (false, false, 1.0),
        ] {
            let rule = Route {
                experts,
                top_k,
                is_sigmoid,
                renormalise,
                scale,
                groups,
            };
            add("route", Body::Routing { rows, rule });
        }
    }
    for (rows, cols, each) in [(1, 8, 1), (7, 72, 2), (129, 1032, 8)] {
        add("expert_rows", Body::ExpertRows { rows, cols, each });
    }
    for tokens in [0, 1, 7, 513] {
        add(
            "embedding",
            Body::Embedding {
                vocab: 300,
                hidden: 136,
                tokens,
            },
        );
    }
    for (rows, cols) in [
        (0, 64),
        (1, 64),
        (7, 256),
        (129, 896),
        (65, 1024),
        (7, 1536),
        (33, 2560),
        (9, 4096),
        (5, 5120),
        (3, 8192),
    ] {
        add("rmsnorm", Body::Norm { rows, cols });
    }
    for (dim, rotary, style) in [
        (16, 16, RopeStyle::Half),
        (32, 32, RopeStyle::Half),
        (64, 64, RopeStyle::Half),
        (64, 32, RopeStyle::Half),
        (64, 32, RopeStyle::Interleaved),
        (80, 80, RopeStyle::Half),
        (96, 96, RopeStyle::Half),
        (112, 112, RopeStyle::Interleaved),
        (128, 128, RopeStyle::Half),
        (128, 64, RopeStyle::Interleaved),
        (192, 64, RopeStyle::Half),
        (256, 64, RopeStyle::Half),
        (576, 64, RopeStyle::Half),
        (576, 64, RopeStyle::Interleaved),
    ] {
        for (query, kv, norms, tokens) in [(1, 1, true, 1), (4, 2, false, 7), (14, 2, true, 133)] {
            add(
                "qk_norm_rope",
                Body::Rotation {
                    heads: Heads { query, kv, dim },
                    rotary,
                    style,
                    norms: norms && dim <= 256,
                    tokens,
                },
            );
        }
    }
    for dim in [16, 32, 64, 80, 96, 128, 192, 256] {
        let lengths: [(usize, usize, &[usize]); 4] = [
            (1, 1, &[1]),
            (2, 2, &[0, 5, 64, 1, 0, 130]),
            (4, 2, &[65, 127, 128, 129]),
            (8, 1, &[300, 1, 257]),
        ];
        for (query, kv, lengths) in lengths {
            add(
                "attention",
                Body::Attention {
                    heads: Heads { query, kv, dim },
                    lengths: lengths.to_vec(),
                },
            );
        }
    }
    add(
        "attention",
        Body::Attention {
            heads: Heads {
                query: 4,
                kv: 2,
                dim: 128,
            },
            lengths: vec![],
        },
    );
    // Rows that no span names, sides of one row and of none, and tiles that end at, before and behind a span's end. The last
    // but one are spans as ranks of a ring have them; those of the last share rows, which the host computes.
    let spans: [&[[Range<usize>; 2]]; 9] = [
        &[],
        &[[0..0, 0..0], [0..0, 0..3], [1..4, 2..2]],
        &[[2..3, 4..5]],
        &[[0..1, 0..300], [2..130, 301..302]],
        &[[0..128, 0..128], [128..256, 128..256]],
        &[[5..134, 0..127], [134..135, 127..256], [140..400, 256..257]],
        &[[200..400, 1..66], [3..196, 100..420]],
        &[[0..140, 0..70], [140..142, 140..141], [142..400, 142..271]],
        &[[0..20, 0..70], [10..30, 60..90]],
    ];
    for dim in [16, 64, 80, 128, 192, 256] {
        for (at, (query, kv)) in [(1, 1), (4, 2), (8, 1), (14, 2)].into_iter().enumerate() {
            for (of, spans) in spans.iter().enumerate() {
                if !matches!(dim, 64 | 128 | 192) && of % 4 != at {
                    continue;
                }
                let end = |side: usize| spans.iter().map(|s| s[side].end).max().unwrap_or(2);
                add(
                    "attend_keys",
                    Body::Keys {
                        heads: Heads { query, kv, dim },
                        rows: end(0) + at,
                        others: end(1) + 3 - at,
                        spans: spans.to_vec(),
                    },
                );
            }
        }
    }
    for dim in [16, 64, 128, 192, 256, 576] {
        for (query, kv) in [(1, 1), (4, 2), (8, 1), (9, 3), (14, 2), (32, 1)] {
            let contexts = vec![
                (1, 1),
                (64, 64),
                (1, 300),
                (33, 40),
                (17, 17),
                (200, 200),
                (1, 1300),
                (5, 514),
                (20, 1040),
                (1, 512),
                (1, 16),
            ];
            add(
                "attention_paged",
                Body::Paged {
                    heads: Heads { query, kv, dim },
                    contexts,
                },
            );
        }
    }
    for (rows, cols) in [(0, 64), (1, 8), (7, 104), (129, 3072)] {
        add("swiglu", Body::SwiGlu { rows, cols });
    }
    for (rows, cols, vocab, temperature) in [
        (0, 64, 64, 1.0),
        (1, 1000, 1000, 1.0),
        (7, 1008, 1003, 0.7),
        (65, 20_000, 20_000, 1.3),
    ] {
        add(
            "head",
            Body::Head {
                rows,
                hidden: Some(64),
                cols,
                vocab,
                temperature,
            },
        );
    }
    for (rows, cols, vocab) in [(1, 1000, 1000), (7, 1008, 1003), (65, 20_000, 20_000)] {
        add(
            "logits",
            Body::Head {
                rows,
                hidden: None,
                cols,
                vocab,
                temperature: 0.9,
            },
        );
    }
    for count in [8, 1000, 100_003] {
        add("sum_squares", Body::SumSquares { count });
    }
    for count in [8, 1003, 100_000] {
        add("adamw", Body::AdamW { count });
    }
    for (op, body) in families::all() {
        add(op, Body::Family(body));
    }
    list
}

impl Case {
    /// Does an emulated GPU compute it in a moment, and does it differ from the others that do?
    pub(crate) fn is_quick(&self) -> bool {
        match &self.body {
            Body::Rows { rows, .. } | Body::SwiGlu { rows, .. } | Body::Pieces { rows, .. } => {
                *rows == 7
            }
            Body::Matmul { rows, .. } | Body::ExpertRows { rows, .. } => *rows == 7,
            Body::Experts { inputs, .. } => *inputs == 72,
            Body::Routing { rows, .. } => *rows == 19,
            Body::Embedding { tokens, .. } => *tokens == 7,
            Body::Norm { cols, .. } => *cols == 256,
            Body::Rotation {
                heads,
                rotary,
                tokens,
                ..
            } => matches!(
                (heads.dim, rotary, tokens),
                (64, 32, 7) | (128, 64, 133) | (576, 64, 1)
            ),
            Body::Attention { heads, .. } => {
                matches!(heads.dim, 16 | 64 | 192 | 256) && heads.query == 2
            }
            Body::Keys { heads, spans, .. } => {
                let few = spans.iter().all(|[queries, _]| queries.len() < 140);
                matches!(heads.dim, 64 | 192) && heads.query == 4 && spans.len() == 3 && few
            }
            Body::Paged { heads, .. } => {
                matches!((heads.dim, heads.query), (64, 4 | 14) | (256, 1) | (576, 4))
            }
            Body::Head { rows, hidden, .. } => *rows == 7 && hidden.is_some(),
            Body::AdamW { count } | Body::SumSquares { count } => matches!(count, 1000 | 1003),
            Body::Family(body) => body.is_quick(),
        }
    }
}
