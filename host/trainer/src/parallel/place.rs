//! Where a rank is on both grids, and who shares what with it.
//!
//! Pure arithmetic in Megatron's order; read [`super::layout`] for the sizes and [`super::mesh`] for the groups as
//! communicators.

use super::layout::ParallelConfig;

/// An axis of the dense grid, in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Parts of matrices.
    Tp,
    /// Parts of sequences.
    Cp,
    /// Different sequences.
    Dp,
    /// Stages.
    Pp,
}

/// The dense grid's axes, fastest first.
pub const AXES: [Axis; 4] = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp];

/// Where one rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the whole run.
    pub rank: usize,
    /// Along each of [`AXES`].
    pub at: [usize; 4],
    /// Sizes of [`AXES`].
    pub sizes: [usize; 4],
    /// Parts of each expert, and ranks that share the experts.
    experts: [usize; 2],
}

impl Place {
    /// Rank `rank` of a layout.
    pub fn new(config: &ParallelConfig, rank: usize) -> Self {
        let sizes = [
            config.tensor_model_parallel_size,
            config.context_parallel_size,
            config.data_parallel_size,
            config.pipeline_model_parallel_size,
        ];
        Self {
            rank,
            at: digits(rank, &sizes).try_into().unwrap_or([0; 4]),
            sizes,
            experts: [config.expert_parts(), config.expert_model_parallel_size],
        }
    }

    /// Place along an axis.
    pub fn along(&self, axis: Axis) -> usize {
        self.at[axis as usize]
    }

    /// Size of an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// Ranks that differ from this one along `axes` only, in rank order.
    pub fn group(&self, axes: &[Axis]) -> Vec<usize> {
        let mask: Vec<bool> = AXES.iter().map(|axis| axes.contains(axis)).collect();
        group_of(self.rank, &self.sizes, &mask)
    }
}

impl Place {
    /// Sizes of the expert grid: etp, ep, edp, pp.
    fn expert_grid(&self) -> [usize; 4] {
        let stage: usize = self.sizes[..3].iter().product();
        let [etp, ep] = self.experts;
        [etp, ep, stage / (etp * ep).max(1), self.size(Axis::Pp)]
    }

    /// Parts of each expert: consecutive ranks hold them.
    pub fn expert_parts(&self) -> usize {
        self.experts[0]
    }

    /// Ranks among which the experts are divided.
    pub fn expert_owners(&self) -> usize {
        self.experts[1]
    }

    /// Ranks that hold all experts together, in rank order.
    pub fn expert_group(&self) -> Vec<usize> {
        group_of(self.rank, &self.expert_grid(), &[true, true, false, false])
    }

    /// Ranks that hold the same parts of the same experts.
    pub fn expert_replicas(&self) -> Vec<usize> {
        group_of(self.rank, &self.expert_grid(), &[false, false, true, false])
    }

    /// Which part of its experts this rank holds, and its place among the ranks that share them.
    pub fn expert_place(&self) -> (usize, usize) {
        let at = digits(self.rank, &self.expert_grid());
        (at[0], at[1])
    }

    /// Which of the replicas of its experts this rank is.
    pub fn expert_replica(&self) -> usize {
        digits(self.rank, &self.expert_grid())[2]
    }
}

/// `rank` in a mixed radix, fastest digit first.
fn digits(mut rank: usize, sizes: &[usize]) -> Vec<usize> {
    sizes
        .iter()
        .map(|size| {
            let digit = rank % size;
            rank /= size;
            digit
        })
        .collect()
}

/// The ranks that share all digits with `rank` that `mask` does not name, ascending.
pub fn group_of(rank: usize, sizes: &[usize], mask: &[bool]) -> Vec<usize> {
    let own = digits(rank, sizes);
    (0..sizes.iter().product())
        .filter(|&other| {
            let theirs = digits(other, sizes);
            (0..sizes.len()).all(|i| mask[i] || own[i] == theirs[i])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every tuple of four sizes whose product is at most `limit`.
    fn tuples(limit: usize) -> Vec<[usize; 4]> {
        let mut all = Vec::new();
        for a in 1..=limit {
            for b in 1..=limit / a {
                for c in 1..=limit / (a * b) {
                    for d in 1..=limit / (a * b * c) {
                        all.push([a, b, c, d]);
                    }
                }
            }
        }
        all
    }

    #[test]
    fn every_kind_of_group_partitions_the_world_and_meets_its_complement_in_one_rank() {
        for sizes in tuples(24) {
            let world: usize = sizes.iter().product();
            for bits in 0..16usize {
                let mask: Vec<bool> = (0..4).map(|i| bits >> i & 1 == 1).collect();
                let other: Vec<bool> = mask.iter().map(|m| !m).collect();
                let groups: BTreeSet<Vec<usize>> =
                    (0..world).map(|r| group_of(r, &sizes, &mask)).collect();
                let mut members: Vec<usize> = groups.iter().flatten().copied().collect();
                members.sort_unstable();
                assert_eq!(members, (0..world).collect::<Vec<_>>());
                for rank in 0..world {
                    let own = group_of(rank, &sizes, &mask);
                    let across = group_of(rank, &sizes, &other);
                    let both: Vec<_> = own.iter().filter(|r| across.contains(r)).collect();
                    assert_eq!(both, [&rank]);
                    assert_eq!(own.len() * across.len(), world);
                }
            }
        }
    }

    #[test]
    fn ranks_are_in_megatrons_order() {
        // `--order tp-cp-ep-dp-pp` with TP2 CP2 DP2 PP2: what Megatron's RankGenerator gives.
        let config = ParallelConfig {
            tensor_model_parallel_size: 2,
            context_parallel_size: 2,
            data_parallel_size: 2,
            pipeline_model_parallel_size: 2,
            ..ParallelConfig::default()
        };
        let place = Place::new(&config, 0);
        assert_eq!(place.group(&[Axis::Tp]), [0, 1]);
        assert_eq!(place.group(&[Axis::Cp]), [0, 2]);
        assert_eq!(place.group(&[Axis::Dp]), [0, 4]);
        assert_eq!(place.group(&[Axis::Pp]), [0, 8]);
        assert_eq!(place.group(&[Axis::Cp, Axis::Dp]), [0, 2, 4, 6]);
        assert_eq!(Place::new(&config, 13).at, [1, 0, 1, 1]);
        // Experts are folded over tp, cp and dp of a stage.
        let folded = |etp, ep| ParallelConfig {
            expert_tensor_parallel_size: Some(etp),
            expert_model_parallel_size: ep,
            ..config.clone()
        };
        let place = Place::new(&folded(1, 4), 13);
        assert_eq!(place.expert_group(), [12, 13, 14, 15]);
        assert_eq!(place.expert_replicas(), [9, 13]);
        assert_eq!((place.expert_place(), place.expert_replica()), ((0, 1), 1));
        let place = Place::new(&folded(2, 2), 13);
        assert_eq!(place.expert_group(), [12, 13, 14, 15]);
        assert_eq!(place.expert_place(), (1, 0));
        // Without a size of their own, experts are divided like every other matrix.
        let place = Place::new(
            &ParallelConfig {
                expert_model_parallel_size: 2,
                ..config
            },
            3,
        );
        assert_eq!(place.expert_place(), (1, 1));
    }
}
