//! Checkpoints: everything a run needs to continue, bit for bit, in model space.
//!
//! ```text
//! step_40/index.json               format, step, identity of the model, optimizer's counters
//! step_40/model.safetensors        weights under their Hugging Face names
//! step_40/optimizer.safetensors    opt/m/<name>, opt/v/<name>, and opt/master/<name> where weights are rounded
//! step_40/critic*.safetensors      the same of a critic, where the algorithm has one, and of its value head
//! ```
//!
//! What takes more than 8 GiB is in up to four files, numbered as HF does it: `optimizer-00001-of-00004.safetensors`.
//! Several ranks write `rank_<n>.safetensors` each instead, and the index says which file has which piece of a tensor
//! ([`pieces`]); any number of ranks loads either. There a critic's names begin with `critic/`.
//!
//! A directory is written under a hidden name, synced and renamed: a crash or a full disk leaves the checkpoint that
//! was there. Read [`tensors`] for the format.

mod critic;
pub mod dir;
pub mod identity;
pub mod pieces;
mod sets;
pub mod tensors;

pub use dir::{commit, keep_last, latest, steps};

use crate::critic::CriticProgress;
use crate::optim::{Progress, State};
use crate::trainer::Trainer;
use crate::{Error, Result};
use dir::Staging;
use identity::Identity;
use pieces::{Library, Table};
use serde::{Deserialize, Serialize};
use sets::{load_set, save_set};
use slime_core::Step;
use slime_kernels::Ops;
use slime_model::{ModelSpec, ParamSpec};
use std::path::Path;
use tensors::Data;

pub(crate) const INDEX: &str = "index.json";
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// Without and with a table of pieces.
pub(crate) const FORMATS: [u32; 2] = [1, 2];

/// What `index.json` holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    pub(crate) format: u32,
    /// Rollout steps finished.
    pub(crate) step: Step,
    pub(crate) model: Identity,
    pub(crate) optimizer: Progress,
    /// The critic's, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) critic: Option<CriticProgress>,
    /// The layout it was saved under, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layout: Option<String>,
    /// Where each tensor's pieces are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tensors: Option<Table>,
}

impl Index {
    /// The index of the checkpoint in `dir`, if it is of this model.
    pub(crate) fn read(dir: &Path, spec: &ModelSpec, params: &[ParamSpec]) -> Result<Self> {
        let path = dir.join(INDEX);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let index: Self = serde_json::from_str(&text).map_err(|e| Error::Checkpoint {
            path: path.clone(),
            detail: format!("is not a checkpoint's index: {e}"),
        })?;
        if !FORMATS.contains(&index.format) {
            let formats = FORMATS.map(|f| f.to_string()).join(" and ");
            let detail = format!("has format {}, this program reads {formats}", index.format);
            return Err(Error::Checkpoint { path, detail });
        }
        let wanted = Identity::of(spec, params);
        if index.model != wanted {
            let (found, wanted) = (index.model.to_string(), wanted.to_string());
            return Err(Error::OtherModel {
                path: dir.to_owned(),
                found,
                wanted,
            });
        }
        Ok(index)
    }

    /// Refuse a checkpoint with a critic for an algorithm without, and the reverse.
    pub(crate) fn check_critic(&self, dir: &Path, has_critic: bool) -> Result<()> {
        let detail = match (has_critic, self.critic.is_some()) {
            (true, false) => {
                "holds no critic, and the algorithm has one: resume with the estimator it was made with"
            }
            (false, true) => {
                "holds a critic, and the algorithm has none: resume with advantage_estimator = ppo"
            }
            _ => return Ok(()),
        };
        Err(Error::Checkpoint {
            path: dir.join(INDEX),
            detail: detail.into(),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("an index is plain data");
        format!("{text}\n")
    }
}

/// Where a trainer's optimizers stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    pub(crate) optimizer: Progress,
    pub(crate) critic: Option<CriticProgress>,
}

/// In a table of pieces, names of a critic's tensors begin with it.
pub(crate) const CRITIC: &str = "critic/";

/// Moments and master weights: name prefix, and how to reach them.
pub(crate) const MOMENTS: [&str; 2] = ["opt/m/", "opt/v/"];
pub(crate) const MASTER: &str = "opt/master/";

impl<O: Ops> Trainer<O> {
    /// Write a checkpoint to `dir`, which says that `step` rollout steps are finished. One that is there is replaced,
    /// once the new one is whole.
    ///
    /// # Errors
    /// The disk failed or is full; what was there before is then still there.
    pub fn save(&self, dir: &Path, step: Step) -> Result<()> {
        let staging = Staging::new(dir)?;
        let (params, optimizer) = (self.network.params(), &self.optimizer);
        let files = [MODEL, OPTIMIZER].map(|file| staging.path().join(file));
        let weights = self.network.weights();
        save_set(&*self.ops, params, weights, optimizer, &files)?;
        if let Some(critic) = &self.critic {
            critic.save(staging.path())?;
        }
        let model = Identity::of(self.network.spec(), params);
        let index = Index {
            format: FORMATS[0],
            step,
            model,
            optimizer: optimizer.progress,
            critic: self.critic.as_ref().map(|critic| critic.progress()),
            layout: None,
            tensors: None,
        };
        staging.write(INDEX, index.to_text().as_bytes())?;
        staging.publish()
    }

    /// Continue from the checkpoint in `dir` → the rollout steps that were finished.
    ///
    /// # Errors
    /// It is of another model, damaged or of another precision; the trainer is then still what it was, unless the
    /// device failed half-way.
    pub fn load(&mut self, dir: &Path) -> Result<Step> {
        let params = self.network.params().clone();
        let index = Index::read(dir, self.network.spec(), &params)?;
        index.check_critic(dir, self.critic.is_some())?;
        if index.tensors.is_some() {
            return self.load_pieces(dir, index);
        }
        let ops = self.ops.clone();
        let files = [MODEL, OPTIMIZER].map(|file| dir.join(file));
        let weights = self.network.weights_mut();
        load_set(&*ops, &params, weights, &mut self.optimizer, &files)?;
        if let (Some(critic), Some(progress)) = (&mut self.critic, index.critic) {
            critic.load(dir)?;
            critic.set_progress(progress);
        }
        self.optimizer.progress = index.optimizer;
        Ok(index.step)
    }

    /// The same from what several ranks have written.
    fn load_pieces(&mut self, dir: &Path, index: Index) -> Result<Step> {
        let (ops, params) = (self.ops.clone(), self.network.params().clone());
        let mut library = Library::open(dir, index.tensors)?;
        let weights = self.network.weights_mut();
        library.take_set(&*ops, "", &params, weights, &mut self.optimizer)?;
        if let (Some(critic), Some(progress)) = (&mut self.critic, index.critic) {
            critic.take(&mut library)?;
            critic.set_progress(progress);
        }
        self.optimizer.progress = index.optimizer;
        Ok(index.step)
    }
}

/// What a state's tensors are called before the parameter's name.
pub(crate) fn prefix(state: State) -> &'static str {
    match state {
        State::First => MOMENTS[0],
        State::Second => MOMENTS[1],
        State::Master => MASTER,
    }
}

pub(crate) fn read_weight<O: Ops>(ops: &O, weight: &O::Tensor, wide: bool) -> Result<Data> {
    Ok(if wide {
        Data::F64(ops.read_f64(weight)?)
    } else {
        Data::F32(ops.read(weight)?)
    })
}

pub(crate) fn read_float<O: Ops>(ops: &O, float: &O::Float, wide: bool) -> Result<Data> {
    Ok(if wide {
        Data::F64(ops.read_float_f64(float)?)
    } else {
        Data::F32(ops.read_float(float)?)
    })
}
