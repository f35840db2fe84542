//! What a model costs, from its `config.json` alone.

use serde_json::json;
use slime_model::layers::Recompute;
use slime_model::{Attention, Ffn, ModelSpec};
use std::fmt::Write;

/// Weight, gradient, master, two moments: bf16 and four times fp32.
const STATE_BYTES: u64 = 2 + 4 + 4 + 4 + 4;
/// Tokens of a block of the embedded engine's cache.
const CACHE_BLOCK_TOKENS: usize = 16;
const RECOMPUTE: [(&str, Recompute); 4] = [
    ("none", Recompute::None),
    ("selective", Recompute::Selective),
    ("mlp", Recompute::Mlp),
    ("full", Recompute::Full),
];

/// A table, or one JSON object.
pub(super) fn text(spec: &ModelSpec, length: usize, json: bool) -> String {
    match json {
        true => format!("{}\n", object(spec, length)),
        false => table(spec, length),
    }
}

/// Bytes of a token's activations with bf16 tensors and fp32 statistics.
fn kept_bytes(spec: &ModelSpec, recompute: Recompute) -> usize {
    let kept = spec.kept(recompute);
    2 * kept.numbers + 4 * kept.floats
}

fn object(spec: &ModelSpec, length: usize) -> serde_json::Value {
    let counts = spec.param_counts();
    let kept: serde_json::Map<_, _> = RECOMPUTE
        .iter()
        .map(|(name, r)| ((*name).to_owned(), kept_bytes(spec, *r).into()))
        .collect();
    json!({
        "model_type": spec.family.model_type,
        "num_layers": spec.layers.len(),
        "params": counts.total,
        "active_params": counts.active,
        "seq_length_tokens": length,
        "forward_flops_per_token": spec.forward_flops(length),
        "train_flops_per_token": spec.train_flops(length),
        "weights_bytes": 2 * counts.total,
        "train_state_bytes": STATE_BYTES * counts.total,
        "activation_bytes_per_token": kept,
        "cache_bytes_per_token": 2 * spec.cached_numbers(CACHE_BLOCK_TOKENS),
    })
}

fn table(spec: &ModelSpec, length: usize) -> String {
    let counts = spec.param_counts();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<22} {value}");
    };
    line("model", described(spec));
    let active = if counts.active == counts.total {
        String::new()
    } else {
        format!(", {} of them for each token", big(counts.active as f64, ""))
    };
    line(
        "parameters",
        format!("{}{active}", big(counts.total as f64, "")),
    );
    let flops = |flops| big(flops, "FLOP");
    line(
        &format!("a token at {length}"),
        format!(
            "forward {}, forward and backward {}",
            flops(spec.forward_flops(length)),
            flops(spec.train_flops(length))
        ),
    );
    line("weights, bf16", big(2.0 * counts.total as f64, "B"));
    line(
        "training state",
        format!(
            "{} (bf16 weights, fp32 gradients, master and two moments: {STATE_BYTES} B a parameter)",
            big((STATE_BYTES * counts.total) as f64, "B")
        ),
    );
    for (name, recompute) in RECOMPUTE {
        let bytes = kept_bytes(spec, recompute) as f64;
        line(
            &format!("kept, recompute {name}"),
            format!("{} a token", big(bytes, "B")),
        );
    }
    let cache = big((2 * spec.cached_numbers(CACHE_BLOCK_TOKENS)) as f64, "B");
    line("cache, bf16", format!("{cache} a token"));
    text
}

fn described(spec: &ModelSpec) -> String {
    let latent = spec
        .layers
        .iter()
        .filter(|l| matches!(l.attn, Attention::Latent(_)))
        .count();
    let moe = spec
        .layers
        .iter()
        .filter(|l| matches!(l.ffn, Ffn::Moe(_)))
        .count();
    let mut text = format!("{}, {} layers", spec.family.model_type, spec.layers.len());
    for (count, what) in [(latent, "with latent attention"), (moe, "with experts")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// Four digits at most, powers of a thousand.
fn big(value: f64, unit: &str) -> String {
    let steps = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")];
    let (scale, prefix) = steps
        .into_iter()
        .find(|(scale, _)| value >= *scale)
        .unwrap_or((1.0, ""));
    // Parameters are counted in billions, everything else in giga.
    let prefix = match (unit, prefix) {
        ("", "G") => "B",
        (_, prefix) => prefix,
    };
    let value = value / scale;
    let digits = if value >= 100.0 { 1 } else { 2 };
    format!("{value:.digits$} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_model_is_planned_from_its_configuration() {
        let model = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/published/deepseek-v3.json"
        );
        let spec = super::super::model(model.as_ref()).unwrap();
        let text = text(&spec, 4096, false);
        for line in [
            "model                  deepseek_v3, 61 layers, 61 with latent attention, 58 with experts",
            "parameters             671.0 B, 37.55 B of them for each token",
            "weights, bf16          1.34 TB",
            "cache, bf16            140.5 KB a token",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert_eq!(object(&spec, 4096)["params"], spec.param_counts().total);
    }
}
