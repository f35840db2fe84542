//! A rank's part of a checkpoint: what it writes, and what it takes of one that any layout wrote.
//!
//! Every element is written by one rank: of the ranks that hold the same parameters, the parameter's number says which. The
//! optimizer's slices are gathered first, bucket by bucket, because a slice's borders mean nothing to another layout. Read
//! [`crate::checkpoint::pieces`] for the format.

use super::critic::RankCritic;
use super::mesh::Mesh;
use super::rank::Rank;
use super::stage::Stage;
use super::trainer::{ParallelTrainer, Training};
use super::zero::Zero;
use crate::Result;
use crate::checkpoint::dir::Staging;
use crate::checkpoint::identity::Identity;
use crate::checkpoint::pieces::{Entry, Library, Piece, Table};
use crate::checkpoint::tensors::{Data, write_pieces};
use crate::checkpoint::{
    CRITIC, Counters, FORMATS, INDEX, Index, MASTER, MOMENTS, prefix, read_float, read_weight,
};
use crate::optim::precision::Precision;
use slime_core::Step;
use slime_kernels::Ops;
use slime_model::ParamSpec;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A piece to be written, and its elements.
struct Held {
    /// The whole tensor's name and shape.
    name: String,
    shape: Vec<usize>,
    rows: [usize; 2],
    cols: [usize; 2],
    data: Data,
}

/// Parameters that a rank has a part of, with their optimizer, and what their tensors' names begin with.
struct Part<'a, O: Ops> {
    stage: &'a Stage<O>,
    optimizer: &'a Zero<O>,
    prefix: &'static str,
}

impl<O: Ops> Part<'_, O> {
    /// Cut what this rank writes of a parameter, `held: [elements of its shard]`.
    fn pieces(&self, param: usize, prefix: &str, held: &Data) -> Vec<Held> {
        let spec = &self.stage.params[param];
        let own = self.stage.shards[param]
            .ranges()
            .filter(|(block, _)| !block.is_copy);
        own.map(|(block, at)| {
            let part = &spec.parts[block.part];
            Held {
                name: format!("{}{prefix}{}", self.prefix, part.name),
                shape: part.shape.clone(),
                rows: [block.rows.start, block.rows.end],
                cols: [block.cols.start, block.cols.end],
                data: match held {
                    Data::F32(data) => Data::F32(data[at].to_vec()),
                    Data::F64(data) => Data::F64(data[at].to_vec()),
                },
            }
        })
        .collect()
    }

    fn writes(&self, mesh: &Mesh<O>, param: usize) -> bool {
        let shard = &self.stage.shards[param];
        let group = mesh.replicas(shard.is_expert);
        !shard.is_empty() && param % group.size() == group.rank()
    }

    /// Its weights, and its states.
    fn held(&self, ops: &O, mesh: &Mesh<O>) -> Result<[Vec<Held>; 2]> {
        let wide = Precision::of_weights(ops)? == Precision::Double;
        let mut pieces = Vec::new();
        for (param, weight) in self.stage.weights.0.iter().enumerate() {
            if self.writes(mesh, param) {
                pieces.extend(self.pieces(param, "", &read_weight(ops, weight, wide)?));
            }
        }
        let wide = Precision::of_accumulators(ops)? == Precision::Double;
        let mut moments = Vec::new();
        let has_master = self.optimizer.segments.iter().any(|s| s.master.is_some());
        let prefixes: &[&str] =
            match has_master || Precision::of_weights(ops)? == Precision::Rounded {
                true => &[MOMENTS[0], MOMENTS[1], MASTER],
                false => &MOMENTS,
            };
        for (which, prefix) in prefixes.iter().enumerate() {
            let take = |param, float: &O::Float| {
                if self.writes(mesh, param) {
                    moments.extend(self.pieces(param, prefix, &read_float(ops, float, wide)?));
                }
                Ok(())
            };
            self.optimizer
                .each_whole(ops, self.stage, mesh, which, take)?;
        }
        Ok([pieces, moments])
    }
}

/// Take a rank's part of parameters and of their optimizer, whose tensors' names begin with `start`.
fn take_part<O: Ops>(
    ops: &O,
    mesh: &Mesh<O>,
    library: &mut Library,
    start: &str,
    stage: &mut Stage<O>,
    optimizer: &mut Zero<O>,
) -> Result<()> {
    let wide = Precision::of_weights(ops)? == Precision::Double;
    let wide_float = Precision::of_accumulators(ops)? == Precision::Double;
    let (params, shards) = (stage.params.clone(), stage.shards.clone());
    let mut held = |param: usize, prefix: &str, wide: bool| -> Result<Data> {
        let (spec, shard) = (&params[param], &shards[param]);
        let mut whole = Data::zeros(wide, 0);
        for block in &shard.blocks {
            let part = &spec.parts[block.part];
            let name = format!("{start}{prefix}{}", part.name);
            let rectangle = (block.rows.clone(), block.cols.clone());
            whole.append(library.block(&name, &part.shape, rectangle, wide)?);
        }
        let filled: usize = shard.blocks.iter().map(|b| b.len()).sum();
        whole.append(Data::zeros(wide, shard.len() - filled));
        Ok(whole)
    };
    for param in (0..params.len()).filter(|&i| !shards[i].is_empty()) {
        let (rows, cols) = (shards[param].rows, shards[param].cols);
        stage.weights.0[param] = match held(param, "", wide)? {
            Data::F32(data) => ops.tensor(rows, cols, &data)?,
            Data::F64(data) => ops.tensor_f64(rows, cols, &data)?,
        };
    }
    let compact = optimizer.compact;
    for segment in &mut optimizer.segments {
        let (param, range) = (segment.param, segment.range.clone());
        segment.restore(ops, &stage.weights.0[param], compact, |state| {
            let data = held(param, prefix(state), wide_float)?;
            Ok(match data {
                Data::F32(data) => Data::F32(data[range.clone()].to_vec()),
                Data::F64(data) => Data::F64(data[range.clone()].to_vec()),
            })
        })?;
    }
    optimizer.share(ops, stage, mesh)
}

impl<O: Ops> RankCritic<O> {
    /// The value head and its states, which every rank has whole.
    fn held_head(&self, ops: &O) -> Result<[Vec<Held>; 2]> {
        let wide = Precision::of_weights(ops)? == Precision::Double;
        let wide_float = Precision::of_accumulators(ops)? == Precision::Double;
        let whole = |param: &ParamSpec, prefix: &str, data| Held {
            name: format!("{CRITIC}{prefix}{}", param.name),
            shape: param.parts[0].shape.clone(),
            rows: [0, param.rows],
            cols: [0, param.cols],
            data,
        };
        let (mut weights, mut states) = (Vec::new(), Vec::new());
        let optimizer = &self.head_optimizer;
        for (i, param) in self.head_params.iter().enumerate() {
            let weight = read_weight(ops, &self.head.0[i], wide)?;
            weights.push(whole(param, "", weight));
            let master = optimizer.master.as_ref().map(|all| (MASTER, &all[i]));
            let moments = [(MOMENTS[0], &optimizer.m[i]), (MOMENTS[1], &optimizer.v[i])];
            for (prefix, state) in moments.into_iter().chain(master) {
                states.push(whole(param, prefix, read_float(ops, state, wide_float)?));
            }
        }
        Ok([weights, states])
    }
}

impl<O: Ops> Rank<O> {
    /// Where its optimizers stand.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            optimizer: self.optimizer.progress,
            critic: self.critic.as_ref().map(RankCritic::progress),
        }
    }

    /// Write this rank's pieces into `dir` → their places.
    ///
    /// # Errors
    /// The disk, a rank or the device failed.
    pub(super) fn write(&self, dir: &Path) -> Result<Table> {
        let (ops, mesh) = (&*self.ops, &self.mesh);
        let policy = Part {
            stage: &self.stage,
            optimizer: &self.optimizer,
            prefix: "",
        };
        let [mut weights, mut states] = policy.held(ops, mesh)?;
        if let Some(critic) = &self.critic {
            let part = Part {
                stage: &critic.stage,
                optimizer: &critic.optimizer,
                prefix: CRITIC,
            };
            let mut sets = vec![part.held(ops, mesh)?];
            if mesh.place.rank == 0 {
                sets.push(critic.held_head(ops)?);
            }
            for [more, more_states] in sets {
                weights.extend(more);
                states.extend(more_states);
            }
        }
        let mut table = Table::new();
        let rank = mesh.place.rank;
        let wide = Precision::of_weights(ops)? == Precision::Double;
        let wide_float = Precision::of_accumulators(ops)? == Precision::Double;
        let names = ["", "_optimizer"].map(|what| format!("rank_{rank}{what}.safetensors"));
        write_file(dir, &names[0], weights, wide, &mut table)?;
        write_file(dir, &names[1], states, wide_float, &mut table)?;
        Ok(table)
    }

    /// Take this rank's part of the checkpoint in `dir`.
    ///
    /// # Errors
    /// It is damaged, of another precision, or has a critic where there is none or the reverse; or the device failed.
    pub(super) fn read(&mut self, dir: &Path, index: &Index) -> Result<()> {
        index.check_critic(dir, self.critic.is_some())?;
        let ops = self.ops.clone();
        let mut library = Library::open(dir, index.tensors.clone())?;
        let mesh = &self.mesh;
        take_part(
            &*ops,
            mesh,
            &mut library,
            "",
            &mut self.stage,
            &mut self.optimizer,
        )?;
        if let (Some(critic), Some(progress)) = (&mut self.critic, index.critic) {
            let (stage, optimizer) = (&mut critic.stage, &mut critic.optimizer);
            take_part(&*ops, mesh, &mut library, CRITIC, stage, optimizer)?;
            let (params, weights) = (&critic.head_params, &mut critic.head);
            library.take_set(&*ops, CRITIC, params, weights, &mut critic.head_optimizer)?;
            critic.set_progress(progress);
        }
        self.optimizer.progress = index.optimizer;
        Ok(())
    }
}

fn write_file(
    dir: &Path,
    file: &str,
    pieces: Vec<Held>,
    wide: bool,
    table: &mut Table,
) -> Result<()> {
    let mut names = Vec::with_capacity(pieces.len());
    let mut data = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let ([r0, r1], [c0, c1]) = (piece.rows, piece.cols);
        let name = format!("{}[{r0}:{r1},{c0}:{c1}]", piece.name);
        let shape = match piece.shape.len() {
            1 => vec![c1 - c0],
            _ => vec![r1 - r0, c1 - c0],
        };
        let entry = table.entry(piece.name).or_insert_with(|| Entry {
            shape: piece.shape,
            pieces: Vec::new(),
        });
        entry.pieces.push(Piece {
            file: file.into(),
            name: name.clone(),
            rows: piece.rows,
            cols: piece.cols,
        });
        names.push((name, shape));
        data.push(Some(piece.data));
    }
    write_pieces(&dir.join(file), &names, wide, |i| {
        Ok(data[i].take().expect("each piece is written once"))
    })
}

/// The index of a checkpoint of which every rank wrote what its table says.
pub(super) fn index_of(
    training: &Training,
    step: Step,
    counters: Counters,
    tables: impl Iterator<Item = Table>,
) -> Index {
    let mut tensors = Table::new();
    for (name, mut entry) in tables.flatten() {
        let known = tensors.entry(name).or_insert_with(|| Entry {
            shape: entry.shape.clone(),
            pieces: Vec::new(),
        });
        known.pieces.append(&mut entry.pieces);
    }
    Index {
        format: FORMATS[1],
        step,
        model: Identity::of(&training.spec, &slime_model::params(&training.spec)),
        optimizer: counters.optimizer,
        critic: counters.critic,
        layout: Some(training.parallel.short()),
        tensors: Some(tensors),
    }
}

impl<O: Ops> ParallelTrainer<O> {
    /// Write a checkpoint to `dir`, which says that `step` rollout steps are finished; every rank writes its part.
    ///
    /// # Errors
    /// The disk failed or is full, or a rank failed; what was there before is then still there.
    pub fn save(&self, dir: &Path, step: Step) -> Result<()> {
        let staging = Staging::new(dir)?;
        let path: PathBuf = staging.path().to_owned();
        let written = self.on_all(move |rank| Ok((rank.write(&path)?, rank.counters())))?;
        let counters = written[0].1;
        let tables = written.into_iter().map(|(table, _)| table);
        let index = index_of(self.training(), step, counters, tables);
        staging.write(INDEX, index.to_text().as_bytes())?;
        staging.publish()
    }

    /// Continue from the checkpoint in `dir`, written by any layout, or by one rank → the rollout steps that were finished.
    ///
    /// # Errors
    /// It is of another model, damaged or of another precision; or a rank failed.
    pub fn load(&mut self, dir: &Path) -> Result<Step> {
        let index = Arc::new(Index::read(dir, self.spec(), self.params())?);
        let (step, dir) = (index.step, dir.to_owned());
        self.on_all(move |rank| rank.read(&dir, &index))?;
        Ok(step)
    }
}
