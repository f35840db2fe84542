//! The policy: what it is, its text side, and its weights on a device.

use super::refused;
use crate::config::Resolved;
use crate::config::plan::{ModelPlan, Weights};
use crate::error::{Failure, Result};
use slime_core::ports::TextCodec;
use slime_kernels::Ops;
use slime_model::text::Text;
use slime_model::{HfDir, ModelFiles, ModelSpec, families, hf, init, params};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// A model whose weights are not in memory yet.
pub struct Model {
    /// What it is.
    pub spec: Arc<ModelSpec>,
    /// Its files beside the weights.
    pub files: ModelFiles,
    /// Tokenizer and chat template.
    pub text: Arc<Text>,
    weights: Stored,
}

enum Stored {
    Directory(Box<HfDir>),
    Fresh(u64),
}

impl Model {
    /// Open what the plan names. A model without weights gets them from `seed`.
    ///
    /// # Errors
    /// Every file that is missing, damaged or of another model, at the key that named it.
    pub fn open(plan: &ModelPlan, said: &Resolved, seed: u64) -> Result<Self> {
        match &plan.weights {
            Weights::Tiny => {
                Self::tiny(seed).map_err(|e| refused(said, &["model.builtin"], e).into())
            }
            Weights::Directory(dir) => {
                Self::directory(dir).map_err(|e| refused(said, &["model.path"], e).into())
            }
        }
    }

    /// Open an HF directory.
    ///
    /// # Errors
    /// A file is missing or damaged, or the model is not supported.
    pub fn directory(dir: &Path) -> slime_model::Result<Self> {
        let model = HfDir::open(dir)?;
        let text = Arc::new(Text::new(&model.files)?);
        text.check_vocab(model.spec.vocab)?;
        Ok(Self {
            spec: Arc::new(model.spec.clone()),
            files: model.files.clone(),
            text,
            weights: Stored::Directory(Box::new(model)),
        })
    }

    pub(crate) fn tiny(seed: u64) -> slime_model::Result<Self> {
        let files = families::demo::files()?;
        let spec = Arc::new(families::demo::spec());
        let text = Arc::new(Text::new(&files)?);
        Ok(Self {
            spec,
            files,
            text,
            weights: Stored::Fresh(seed),
        })
    }

    /// Its weights on a device, in canonical order.
    ///
    /// # Errors
    /// They do not fit the model, or the device.
    pub fn load<O: Ops>(&self, ops: &O) -> slime_model::Result<Vec<O::Tensor>> {
        let mut tensors = Vec::new();
        match &self.weights {
            Stored::Directory(dir) => dir.weights.load_params(&self.spec, |param, data| {
                tensors.push(ops.tensor(param.rows, param.cols, &data)?);
                Ok::<_, slime_model::Error>(())
            })?,
            Stored::Fresh(seed) => {
                for param in params(&self.spec) {
                    tensors.push(ops.tensor(
                        param.rows,
                        param.cols,
                        &init::fresh(&self.spec, &param, *seed),
                    )?);
                }
            }
        }
        Ok(tensors)
    }

    /// The type its files hold.
    pub fn dtype(&self) -> hf::Dtype {
        match &self.weights {
            Stored::Directory(dir) => dir.weights.dtype().unwrap_or(hf::Dtype::F32),
            Stored::Fresh(_) => hf::Dtype::F32,
        }
    }

    /// Names of the tensors that its files hold in blocks of 8 bits.
    pub fn blocks(&self) -> BTreeSet<String> {
        match &self.weights {
            Stored::Directory(dir) => dir.weights.blocks(),
            Stored::Fresh(_) => BTreeSet::new(),
        }
    }

    /// Number of parameters, for people.
    pub fn size(&self) -> String {
        let millions = self.spec.num_params() as f64 / 1e6;
        if millions >= 10.0 {
            format!("{millions:.0} M parameters")
        } else {
            format!("{millions:.1} M parameters")
        }
    }

    /// Name for people.
    pub fn name(&self) -> String {
        match &self.weights {
            Stored::Fresh(_) => "tiny".into(),
            Stored::Directory(_) => {
                let origin = Path::new(self.files.origin());
                origin.file_name().map_or_else(
                    || self.files.origin().into(),
                    |name| name.to_string_lossy().into_owned(),
                )
            }
        }
    }

    /// Whether it is part of the program.
    pub fn is_builtin(&self) -> bool {
        matches!(self.weights, Stored::Fresh(_))
    }
}

/// Load the weights of `dir`, which must be of the same shape as `model`.
///
/// # Errors
/// They are not.
pub fn load_other<O: Ops>(
    model: &Model,
    dir: &Path,
    ops: &O,
) -> slime_model::Result<Vec<O::Tensor>> {
    let weights = slime_model::hf::Weights::open(dir)?;
    let mut tensors = Vec::new();
    weights.load_params(&model.spec, |param, data| {
        tensors.push(ops.tensor(param.rows, param.cols, &data)?);
        Ok::<_, slime_model::Error>(())
    })?;
    Ok(tensors)
}

/// Text on which two tokenizers must agree before log-probs of one model are compared with those of another.
const PROBE: &str = "The quick brown fox (3.14 × 10⁵) jumps;\n\tdef f(x): return {\"a\": [x, -x]} # 你好 — \\boxed{42}";

/// A teacher's model and weights, from its HF directory. It may be larger than `student`, but reads the same tokens.
///
/// # Errors
/// It cannot be loaded, or spells text otherwise.
pub fn load_teacher<O: Ops>(
    student: &Model,
    dir: &Path,
    ops: &O,
) -> slime_model::Result<(Arc<ModelSpec>, Vec<O::Tensor>)> {
    let teacher = Model::directory(dir)?;
    let spell = |model: &Model| model.text.encode(PROBE).map_err(|e| e.to_string());
    if spell(&teacher) != spell(student) {
        return Err(slime_model::Error::Input(format!(
            "{}: its tokenizer is not the student's, and distillation compares log-probs of the same tokens; take a teacher of the same family",
            dir.display()
        )));
    }
    Ok((teacher.spec.clone(), teacher.load(ops)?))
}

/// A model's error after the run began.
pub fn model_failed(error: slime_model::Error) -> Failure {
    Failure::run(error.to_string())
}
