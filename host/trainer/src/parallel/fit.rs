//! Which layouts a model can have, and in words why not the others.
//!
//! Every problem names the size to change. It sends nothing and allocates nothing.

use super::layout::{ParallelConfig, stage_layers};
use crate::config::Problem;
use slime_model::{Attention, Ffn, LayerSpec, ModelSpec, MoeSpec};

const TENSOR: &str = "tensor_model_parallel_size";
const CONTEXT: &str = "context_parallel_size";
const PIPELINE: &str = "pipeline_model_parallel_size";
const VIRTUAL: &str = "virtual_pipeline_model_parallel_size";
const EXPERTS: &str = "expert_model_parallel_size";
const EXPERT_TENSOR: &str = "expert_tensor_parallel_size";

type Refusal = (&'static str, String);

impl ParallelConfig {
    /// What cannot work for this model; all of it at once, one problem of each kind.
    pub fn problems(&self, spec: &ModelSpec) -> Vec<Problem> {
        let sizes = [
            (TENSOR, self.tensor_model_parallel_size),
            (PIPELINE, self.pipeline_model_parallel_size),
            (VIRTUAL, self.virtual_pipeline_model_parallel_size),
            (CONTEXT, self.context_parallel_size),
            (EXPERTS, self.expert_model_parallel_size),
            (EXPERT_TENSOR, self.expert_parts()),
            ("data_parallel_size", self.data_parallel_size),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return vec![Problem {
                key,
                detail: "is 0; 1 means not to split".into(),
            }];
        }
        let mut found: Vec<Refusal> = Vec::new();
        if self.sequence_parallel && self.tensor_model_parallel_size == 1 {
            let detail =
                "splits rows over tensor_model_parallel_size ranks, which is 1; leave it out";
            found.push(("sequence_parallel", detail.into()));
        }
        let mut add = |refusal: Option<Refusal>| {
            let new = refusal.filter(|(key, _)| found.iter().all(|(known, _)| known != key));
            found.extend(new);
        };
        for layer in &spec.layers {
            add(self.attention_problem(layer));
            match &layer.ffn {
                Ffn::SwiGlu { hidden } => add(self.columns_problem(*hidden, "feed-forward")),
                Ffn::Moe(moe) => {
                    add(self.experts_problem(moe));
                    let shared = moe.shared.unwrap_or(0);
                    add(self.columns_problem(shared, "shared experts'"));
                }
            }
        }
        add(self.expert_grid_problem(spec));
        if self.virtual_pipeline_model_parallel_size > 1 && self.pipeline_model_parallel_size == 1 {
            let detail = "interleaves stages, and there is one; leave it out";
            add(Some((VIRTUAL, detail.into())));
        }
        let stages = stage_layers(self, spec.layers.len());
        add(stages.err().map(|detail| (PIPELINE, detail)));
        let problem = |(key, detail)| Problem { key, detail };
        found.into_iter().map(problem).collect()
    }

    fn attention_problem(&self, layer: &LayerSpec) -> Option<Refusal> {
        let (tp, cp) = (self.tensor_model_parallel_size, self.context_parallel_size);
        let indivisible = |heads: usize| {
            let detail = format!("{tp} does not divide the model's {heads} query heads");
            (!heads.is_multiple_of(tp)).then_some((TENSOR, detail))
        };
        match &layer.attn {
            Attention::Grouped(attn) => indivisible(attn.heads.query).or_else(|| {
                let kv = attn.heads.kv;
                let detail =
                    format!("neither {tp} nor the model's {kv} key heads divide each other");
                (!kv.is_multiple_of(tp) && !tp.is_multiple_of(kv)).then_some((TENSOR, detail))
            }),
            Attention::Latent(attn) => indivisible(attn.widths.heads),
            Attention::Delta(attn) if attn.heads.keys.is_multiple_of(tp) => {
                let detail = format!(
                    "is {cp}, but a gated delta net reads a sequence token after token, so no sequence of it can be \
                     divided over ranks yet: use 1, and tensor, pipeline, expert or data-parallel ranks"
                );
                (cp > 1).then_some((CONTEXT, detail))
            }
            Attention::Delta(attn) => {
                let keys = attn.heads.keys;
                let detail =
                    format!("{tp} does not divide the {keys} key heads of a gated delta net");
                Some((TENSOR, detail))
            }
        }
    }

    fn columns_problem(&self, columns: usize, whose: &str) -> Option<Refusal> {
        let tp = self.tensor_model_parallel_size;
        let detail = format!("{tp} does not divide the model's {columns} {whose} columns");
        (!columns.is_multiple_of(tp)).then_some((TENSOR, detail))
    }

    fn experts_problem(&self, moe: &MoeSpec) -> Option<Refusal> {
        let (experts, ep) = (moe.routing.experts, self.expert_model_parallel_size);
        if self.tensor_model_parallel_size > 1 && !self.sequence_parallel {
            let detail = "must be on with experts and tensor_model_parallel_size above 1, so that each of these ranks \
                          sends rows of its own to the experts";
            return Some(("sequence_parallel", detail.into()));
        }
        if !experts.is_multiple_of(ep) {
            let detail = format!("{ep} does not divide the model's {experts} experts");
            return Some((EXPERTS, detail));
        }
        let (columns, etp) = (moe.hidden, self.expert_parts());
        let detail = format!("{etp} does not divide the {columns} columns of each expert");
        (!columns.is_multiple_of(etp)).then_some((EXPERT_TENSOR, detail))
    }

    /// Experts are folded over the ranks of one stage.
    fn expert_grid_problem(&self, spec: &ModelSpec) -> Option<Refusal> {
        let (ep, etp) = (self.expert_model_parallel_size, self.expert_parts());
        let asked = self.expert_tensor_parallel_size;
        if !spec.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_))) {
            let none = |size| format!("is {size}, and the model has no experts; leave it out");
            return match asked {
                _ if ep > 1 => Some((EXPERTS, none(ep))),
                Some(etp) if etp > 1 => Some((EXPERT_TENSOR, none(etp))),
                _ => None,
            };
        }
        let stage = self.world() / self.pipeline_model_parallel_size;
        if stage.is_multiple_of(ep * etp) {
            return None;
        }
        let detail = format!(
            "{ep}, times {etp} parts of each expert (expert_tensor_parallel_size{}), does not divide the {stage} ranks of \
             a stage",
            match asked {
                Some(_) => "",
                None => ", by default tensor_model_parallel_size; slime sets 1",
            }
        );
        Some((EXPERTS, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_model::families::{self, HfConfig};

    fn spec(family: usize) -> ModelSpec {
        let config = HfConfig::new("test", families::ALL[family].tiny_config()).unwrap();
        families::from_config(&config).unwrap()
    }

    #[test]
    fn only_sequences_of_gated_delta_nets_are_refused_and_by_name() {
        let of_axis = |size: fn(&mut ParallelConfig) -> &mut usize| {
            let mut config = ParallelConfig::default();
            *size(&mut config) = 2;
            config.sequence_parallel = config.tensor_model_parallel_size > 1;
            config
        };
        let mut refused = 0;
        for spec in (0..families::ALL.len()).map(spec) {
            let delta = spec
                .layers
                .iter()
                .any(|l| matches!(l.attn, Attention::Delta(_)));
            for (config, divides) in [
                (of_axis(|c| &mut c.tensor_model_parallel_size), true),
                (of_axis(|c| &mut c.context_parallel_size), !delta),
                (of_axis(|c| &mut c.data_parallel_size), true),
            ] {
                let mut problems = config.problems(&spec);
                // Some of the tiny models have three heads.
                problems.retain(|p| !p.detail.contains("query heads"));
                if divides {
                    assert!(problems.is_empty(), "{problems:?}");
                } else {
                    assert_eq!(problems.len(), 1, "{problems:?}");
                    assert!(problems[0].detail.contains("gated delta net"));
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn experts_are_split_only_where_the_grid_and_the_model_allow_it() {
        let moe = |spec: &ModelSpec| spec.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_)));
        let experts = (0..families::ALL.len()).map(spec).find(moe).unwrap();
        let dense = (0..families::ALL.len())
            .map(spec)
            .find(|s| !moe(s))
            .unwrap();
        let config = |ep, etp, dp| ParallelConfig {
            expert_model_parallel_size: ep,
            expert_tensor_parallel_size: etp,
            data_parallel_size: dp,
            ..ParallelConfig::default()
        };
        let said = |config: ParallelConfig, spec| {
            let problems = config.problems(spec);
            assert!(problems.len() < 2, "{problems:?}");
            problems.first().map(|p| format!("{} {}", p.key, p.detail))
        };
        assert_eq!(said(config(2, None, 2), &experts), None);
        let message = said(config(2, None, 2), &dense).unwrap();
        assert!(message.contains("no experts; leave it out"), "{message}");
        let message = said(config(2, None, 3), &experts).unwrap();
        assert!(message.contains("does not divide the 3 ranks"), "{message}");
        let both = ParallelConfig {
            tensor_model_parallel_size: 2,
            ..config(2, Some(1), 1)
        };
        let message = said(both.clone(), &experts).unwrap();
        assert!(message.starts_with("sequence_parallel"), "{message}");
        let both = ParallelConfig {
            sequence_parallel: true,
            ..both
        };
        assert_eq!(said(both.clone(), &experts), None);
        let folded_twice = ParallelConfig {
            expert_tensor_parallel_size: None,
            ..both
        };
        let message = said(folded_twice, &experts).unwrap();
        assert!(message.contains("slime sets 1"), "{message}");
    }
}
