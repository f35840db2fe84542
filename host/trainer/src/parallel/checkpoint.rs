//! A rank's part of a checkpoint: what it writes, and what it takes of one that any layout wrote.
//!
//! Every element is written by one rank: of the ranks that hold the same parameters, the parameter's number says which. The
//! optimizer's slices are gathered first, bucket by bucket, because a slice's borders mean nothing to another layout. Read
//! [`crate::checkpoint::pieces`] for the format.

use super::critic::RankCritic;
use super::mesh::Mesh;
use super::rank::Rank;
use super::shard::Block;
use super::stage::Stage;
use super::trainer::{ParallelTrainer, Training};
use super::zero::Zero;
use crate::Result;
use crate::checkpoint::dir::Staging;
use crate::checkpoint::identity::Identity;
use crate::checkpoint::pieces::{Entry, Library, Piece, Table, file_name};
use crate::checkpoint::tensors::{Data, Writer, write_files};
use crate::checkpoint::{
    CRITIC, Counters, FORMATS, INDEX, Index, MASTER, MOMENTS, prefix, read_float, read_weight,
};
use crate::optim::precision::Precision;
use slime_core::Step;
use slime_kernels::Ops;
use slime_model::ParamSpec;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A piece that this rank writes.
struct Own {
    /// The whole tensor's name and shape.
    name: String,
    shape: Vec<usize>,
    rows: [usize; 2],
    cols: [usize; 2],
}

/// Parameters that a rank has a part of, with their optimizer, and what their tensors' names begin with.
struct Part<'a, O: Ops> {
    stage: &'a Stage<O>,
    optimizer: &'a Zero<O>,
    prefix: &'static str,
}

/// Where the pieces of one set of parameters begin among all that are announced, by parameter.
type Starts = Vec<usize>;

impl<O: Ops> Part<'_, O> {
    /// Blocks that this rank writes of a parameter, and where their elements lie in its shard.
    fn blocks(&self, param: usize) -> impl Iterator<Item = (&Block, Range<usize>)> {
        let all = self.stage.shards[param].ranges();
        all.filter(|(block, _)| !block.is_copy)
    }

    fn writes(&self, mesh: &Mesh<O>, param: usize) -> bool {
        let shard = &self.stage.shards[param];
        let group = mesh.replicas(shard.is_expert);
        !shard.is_empty() && param % group.size() == group.rank()
    }

    /// Add what this rank writes of every parameter under a prefix.
    fn announce(&self, mesh: &Mesh<O>, prefix: &str, to: &mut Vec<Own>) -> Starts {
        let mut starts = Starts::new();
        for (param, spec) in self.stage.params.iter().enumerate() {
            starts.push(to.len());
            if !self.writes(mesh, param) {
                continue;
            }
            to.extend(self.blocks(param).map(|(block, _)| {
                let part = &spec.parts[block.part];
                Own {
                    name: format!("{}{prefix}{}", self.prefix, part.name),
                    shape: part.shape.clone(),
                    rows: [block.rows.start, block.rows.end],
                    cols: [block.cols.start, block.cols.end],
                }
            }));
        }
        starts
    }

    /// Put the pieces of a parameter, `held: [elements of its shard]`.
    fn put(&self, writer: &Writer, starts: &Starts, param: usize, held: &Data) {
        for (i, (_, at)) in self.blocks(param).enumerate() {
            let data = match held {
                Data::F32(data) => Data::F32(data[at].to_vec()),
                Data::F64(data) => Data::F64(data[at].to_vec()),
            };
            // A disk that fails is told of in the end: until then other ranks need this one.
            writer.put(starts[param] + i, data);
        }
    }

    fn prefixes(&self, ops: &O) -> Result<&'static [&'static str]> {
        let has_master = self.optimizer.segments.iter().any(|s| s.master.is_some());
        Ok(
            match has_master || Precision::of_weights(ops)? == Precision::Rounded {
                true => &[MOMENTS[0], MOMENTS[1], MASTER],
                false => &MOMENTS,
            },
        )
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
    /// The value head and its states, which every rank has whole: what they are, and their elements.
    fn held_head(&self, ops: &O) -> Result<[Vec<(Own, Data)>; 2]> {
        let wide = Precision::of_weights(ops)? == Precision::Double;
        let wide_float = Precision::of_accumulators(ops)? == Precision::Double;
        let whole = |param: &ParamSpec, prefix: &str| Own {
            name: format!("{CRITIC}{prefix}{}", param.name),
            shape: param.parts[0].shape.clone(),
            rows: [0, param.rows],
            cols: [0, param.cols],
        };
        let (mut weights, mut states) = (Vec::new(), Vec::new());
        let optimizer = &self.head_optimizer;
        for (i, param) in self.head_params.iter().enumerate() {
            let weight = read_weight(ops, &self.head.0[i], wide)?;
            weights.push((whole(param, ""), weight));
            let master = optimizer.master.as_ref().map(|all| (MASTER, &all[i]));
            let moments = [(MOMENTS[0], &optimizer.m[i]), (MOMENTS[1], &optimizer.v[i])];
            for (prefix, state) in moments.into_iter().chain(master) {
                states.push((whole(param, prefix), read_float(ops, state, wide_float)?));
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

    /// Write this rank's pieces into `dir` → their places. A few tensors are in memory at a time.
    ///
    /// # Errors
    /// The disk, a rank or the device failed.
    pub(super) fn write(&self, dir: &Path) -> Result<Table> {
        let (ops, mesh) = (&*self.ops, &self.mesh);
        let mut parts = vec![Part {
            stage: &self.stage,
            optimizer: &self.optimizer,
            prefix: "",
        }];
        parts.extend(self.critic.as_ref().map(|critic| Part {
            stage: &critic.stage,
            optimizer: &critic.optimizer,
            prefix: CRITIC,
        }));
        let rank = mesh.place.rank;
        let head = self.critic.as_ref().filter(|_| rank == 0);
        let [head_weights, head_states] = match head {
            Some(critic) => critic.held_head(ops)?,
            None => [Vec::new(), Vec::new()],
        };
        let path = |what| dir.join(format!("rank_{rank}{what}.safetensors"));
        let mut table = Table::new();

        let wide = Precision::of_weights(ops)? == Precision::Double;
        let mut own = Vec::new();
        let starts: Vec<Starts> =
            (parts.iter().map(|part| part.announce(mesh, "", &mut own))).collect();
        write_own(&path(""), own, head_weights, wide, &mut table, |writer| {
            for (part, starts) in parts.iter().zip(&starts) {
                for (param, weight) in part.stage.weights.0.iter().enumerate() {
                    if part.writes(mesh, param) {
                        part.put(writer, starts, param, &read_weight(ops, weight, wide)?);
                    }
                }
            }
            Ok(())
        })?;

        let wide = Precision::of_accumulators(ops)? == Precision::Double;
        let (mut own, mut sets) = (Vec::new(), Vec::new());
        for part in &parts {
            for (which, prefix) in part.prefixes(ops)?.iter().enumerate() {
                sets.push((part, which, part.announce(mesh, prefix, &mut own)));
            }
        }
        write_own(
            &path("_optimizer"),
            own,
            head_states,
            wide,
            &mut table,
            |writer| {
                for (part, which, starts) in &sets {
                    let take = |param, float: &O::Float| {
                        if part.writes(mesh, param) {
                            part.put(writer, starts, param, &read_float(ops, float, wide)?);
                        }
                        Ok(())
                    };
                    part.optimizer
                        .each_whole(ops, part.stage, mesh, *which, take)?;
                }
                Ok(())
            },
        )?;
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

/// Write the announced pieces, which `feed` puts, and a few that are there already.
fn write_own(
    path: &Path,
    mut own: Vec<Own>,
    there: Vec<(Own, Data)>,
    wide: bool,
    table: &mut Table,
    feed: impl FnOnce(&Writer) -> Result<()>,
) -> Result<()> {
    let first = own.len();
    let (more, there): (Vec<_>, Vec<_>) = there.into_iter().unzip();
    own.extend(more);
    let named = |piece: &Own| {
        let ([r0, r1], [c0, c1]) = (piece.rows, piece.cols);
        let shape = match piece.shape.len() {
            1 => vec![c1 - c0],
            _ => vec![r1 - r0, c1 - c0],
        };
        vec![(format!("{}[{r0}:{r1},{c0}:{c1}]", piece.name), shape)]
    };
    let announced: Vec<_> = own.iter().map(named).collect();
    let files = write_files(path, &announced, wide, |writer| {
        feed(writer)?;
        for (i, data) in there.into_iter().enumerate() {
            writer.put(first + i, data);
        }
        Ok(())
    })?;
    for ((piece, named), file) in own.into_iter().zip(announced).zip(files) {
        let entry = table.entry(piece.name).or_insert_with(|| Entry {
            shape: piece.shape,
            pieces: Vec::new(),
        });
        let (name, _) = named.into_iter().next().expect("each is one piece");
        entry.pieces.push(Piece {
            file: file_name(&file),
            name,
            rows: piece.rows,
            cols: piece.cols,
        });
    }
    Ok(())
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
