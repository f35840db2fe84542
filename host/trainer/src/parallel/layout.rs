//! How many ranks share what: Megatron's sizes, and the order of axes.
//!
//! ```text
//! dense grid    rank = tp  + TP  (cp + CP (dp  + DP  pp))
//! expert grid   rank = etp + ETP (ep + EP (edp + EDP pp))      EDP = world / (ETP EP PP)
//! ```
//!
//! Both grids cover the same ranks, so experts are folded over tp, cp and dp of one stage. Read [`super::place`] for who
//! shares what with whom, [`super::fit`] for which sizes a model can have.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How a model is spread over ranks, under Megatron's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Ranks that share each matrix.
    pub tensor_model_parallel_size: usize,
    /// Split the stream's rows over them too.
    pub sequence_parallel: bool,
    /// Stages that share the layers.
    pub pipeline_model_parallel_size: usize,
    /// Chunks of layers a stage holds; more than one interleaves them.
    pub virtual_pipeline_model_parallel_size: usize,
    /// Layers of the first stage, if not as many as the others.
    pub decoder_first_pipeline_num_layers: Option<usize>,
    /// Layers of the last stage, if not as many as the others.
    pub decoder_last_pipeline_num_layers: Option<usize>,
    /// Ranks that share each sequence.
    pub context_parallel_size: usize,
    /// Ranks of one stage that share the experts, whatever their place on the other axes.
    pub expert_model_parallel_size: usize,
    /// Ranks that share the columns of each expert; as many as share every matrix when not given.
    pub expert_tensor_parallel_size: Option<usize>,
    /// Ranks that train on different sequences.
    pub data_parallel_size: usize,
    /// Elements of one gradient bucket; when not given 40 million, or a million a rank if that is more.
    pub ddp_bucket_size: Option<usize>,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            tensor_model_parallel_size: 1,
            sequence_parallel: false,
            pipeline_model_parallel_size: 1,
            virtual_pipeline_model_parallel_size: 1,
            decoder_first_pipeline_num_layers: None,
            decoder_last_pipeline_num_layers: None,
            context_parallel_size: 1,
            expert_model_parallel_size: 1,
            expert_tensor_parallel_size: None,
            data_parallel_size: 1,
            ddp_bucket_size: None,
        }
    }
}

impl ParallelConfig {
    /// Ranks in all.
    pub fn world(&self) -> usize {
        self.tensor_model_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
            * self.pipeline_model_parallel_size
    }

    /// From sizes like `tp4,pp2,cp2,ep8,etp1,vpp2,first3,last9`; what is left of `gpus` is data-parallel, and sequence
    /// parallelism comes with `tp`.
    ///
    /// # Errors
    /// A word that is no size, or sizes that do not divide the GPUs; in words.
    pub fn from_words(said: &str, gpus: usize) -> Result<Self, String> {
        let (mut parallel, mut seen) = (Self::default(), Vec::new());
        for word in said.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let at = word.find(|c: char| c.is_ascii_digit());
            let (axis, size) = word.split_at(at.unwrap_or(word.len()));
            let size: usize = size.parse().map_err(|_| format!("`{word}` has no size"))?;
            if size == 0 {
                return Err(format!("`{word}`: a size is at least 1"));
            }
            if seen.contains(&axis) {
                return Err(format!("`{axis}` is said twice"));
            }
            seen.push(axis);
            match axis {
                "tp" => parallel.tensor_model_parallel_size = size,
                "pp" => parallel.pipeline_model_parallel_size = size,
                "cp" => parallel.context_parallel_size = size,
                "ep" => parallel.expert_model_parallel_size = size,
                "etp" => parallel.expert_tensor_parallel_size = Some(size),
                "vpp" => parallel.virtual_pipeline_model_parallel_size = size,
                "first" => parallel.decoder_first_pipeline_num_layers = Some(size),
                "last" => parallel.decoder_last_pipeline_num_layers = Some(size),
                _ => return Err(format!("`{axis}` is no axis")),
            }
        }
        parallel.sequence_parallel = parallel.tensor_model_parallel_size > 1;
        let one = parallel.world();
        if !gpus.is_multiple_of(one) {
            return Err(format!("{one} ranks do not divide {gpus} GPUs"));
        }
        parallel.data_parallel_size = gpus / one;
        Ok(parallel)
    }

    /// Parts of each expert.
    pub fn expert_parts(&self) -> usize {
        self.expert_tensor_parallel_size
            .unwrap_or(self.tensor_model_parallel_size)
    }

    /// In few letters: `tp2 pp2 cp2 sp`.
    pub fn short(&self) -> String {
        let sizes = [
            ("tp", self.tensor_model_parallel_size),
            ("cp", self.context_parallel_size),
            ("ep", self.expert_model_parallel_size),
            ("dp", self.data_parallel_size),
            ("pp", self.pipeline_model_parallel_size),
            ("vpp", self.virtual_pipeline_model_parallel_size),
        ];
        let mut words: Vec<String> = sizes
            .iter()
            .filter(|(_, n)| *n > 1)
            .map(|(name, n)| format!("{name}{n}"))
            .collect();
        // Without a word experts are split as everything else.
        let otherwise = |n: &usize| *n != self.tensor_model_parallel_size;
        let etp = self.expert_tensor_parallel_size.filter(otherwise);
        words.extend(etp.map(|n| format!("etp{n}")));
        if self.sequence_parallel {
            words.push("sp".into());
        }
        if words.is_empty() {
            words.push("one rank".into());
        }
        words.join(" ")
    }
}

/// Which layers each virtual stage holds, in the order in which a micro-batch meets them. Virtual stage `v` is chunk
/// `v / PP` of rank `v % PP`.
///
/// # Errors
/// The layers do not divide; in words.
pub fn stage_layers(config: &ParallelConfig, layers: usize) -> Result<Vec<Range<usize>>, String> {
    let pp = config.pipeline_model_parallel_size;
    let (first, last) = (
        config.decoder_first_pipeline_num_layers,
        config.decoder_last_pipeline_num_layers,
    );
    let stages = pp * config.virtual_pipeline_model_parallel_size;
    if (first.is_some() || last.is_some()) && config.virtual_pipeline_model_parallel_size > 1 {
        return Err("uneven first and last stages cannot be interleaved".into());
    }
    let fixed = usize::from(first.is_some()) + usize::from(last.is_some());
    if fixed > 0 && fixed >= stages && layers != first.unwrap_or(0) + last.unwrap_or(0) {
        return Err(format!(
            "the first and last stage's layers are given and are not the model's {layers}"
        ));
    }
    let taken = first.unwrap_or(0) + last.unwrap_or(0);
    let middle = stages.saturating_sub(fixed);
    if taken > layers || (middle > 0 && !(layers - taken).is_multiple_of(middle)) {
        return Err(format!(
            "{layers} layers, {taken} of them given to the first and last stage, do not divide over {middle} stages; \
             set decoder_first_pipeline_num_layers or decoder_last_pipeline_num_layers"
        ));
    }
    let each = (layers - taken).checked_div(middle).unwrap_or(0);
    let mut start = 0;
    let ranges: Vec<Range<usize>> = (0..stages)
        .map(|stage| {
            let len = match stage {
                0 if first.is_some() => first.unwrap_or(0),
                s if s + 1 == stages && last.is_some() => last.unwrap_or(0),
                _ => each,
            };
            start += len;
            start - len..start
        })
        .collect();
    if ranges.iter().any(Range::is_empty) {
        return Err(format!(
            "{layers} layers leave some of {stages} stages empty"
        ));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_in_words_leaves_the_rest_to_data_parallel_ranks() {
        let parallel = ParallelConfig::from_words("tp4, pp8,ep32,etp1,last9", 512).unwrap();
        assert_eq!((parallel.world(), parallel.data_parallel_size), (512, 16));
        assert_eq!(parallel.short(), "tp4 ep32 dp16 pp8 etp1 sp");
        assert_eq!(parallel.decoder_last_pipeline_num_layers, Some(9));
        for (said, wrong) in [
            ("tp", "no size"),
            ("xp2", "no axis"),
            ("tp3", "divide 512"),
            ("tp2,tp4", "`tp` is said twice"),
            ("tp0", "`tp0`: a size is at least 1"),
        ] {
            let message = ParallelConfig::from_words(said, 512).unwrap_err();
            assert!(message.contains(wrong), "{message}");
        }
    }

    #[test]
    fn layouts_whose_experts_are_split_otherwise_are_called_otherwise() {
        let short = |words| ParallelConfig::from_words(words, 16).unwrap().short();
        assert_eq!(short("tp2,ep4"), "tp2 ep4 dp8 sp");
        assert_eq!(short("tp2,ep4,etp2"), "tp2 ep4 dp8 sp");
        assert_eq!(short("tp2,ep4,etp1"), "tp2 ep4 dp8 etp1 sp");
        assert_eq!(short("ep4,etp1"), "ep4 dp16");
        assert_eq!(short("ep4,etp2"), "ep4 dp16 etp2");
    }

    #[test]
    fn uneven_stages_take_what_they_were_given_and_the_rest_divides() {
        let config = |pp, first, last| ParallelConfig {
            pipeline_model_parallel_size: pp,
            decoder_first_pipeline_num_layers: first,
            decoder_last_pipeline_num_layers: last,
            ..ParallelConfig::default()
        };
        // DeepSeek-V3 as slime runs it: 61 layers, PP4, 13 in the last stage.
        let stages = stage_layers(&config(4, None, Some(13)), 61).unwrap();
        assert_eq!(stages, [0..16, 16..32, 32..48, 48..61]);
        let stages = stage_layers(&config(3, Some(1), Some(1)), 4).unwrap();
        assert_eq!(stages, [0..1, 1..3, 3..4]);
        assert!(stage_layers(&config(3, None, None), 4).is_err());
        assert!(stage_layers(&config(2, Some(1), Some(1)), 4).is_err());
        assert!(stage_layers(&config(8, None, None), 4).is_err());
    }
}
