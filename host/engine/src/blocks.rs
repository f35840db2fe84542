//! Who owns which block of the cache: a pool of free ones, and a radix tree of full ones that later requests share.
//!
//! A block belongs to the pool, to one sequence, or to the tree. Only full blocks enter the tree, so a shared
//! block is never written again. It holds no keys and values; it only says where they are.

use std::collections::{BTreeMap, BTreeSet};

type NodeId = usize;

/// A full block, reached from the root by the tokens before it.
struct Node {
    /// Its own tokens.
    key: Box<[u32]>,
    block: u32,
    parent: Option<NodeId>,
    children: BTreeMap<Box<[u32]>, NodeId>,
    /// Sequences that use it. A parent is used by whoever uses its children.
    users: usize,
    last_used: u64,
    /// Not to be found any more: the cache was flushed while it was in use.
    detached: bool,
}

/// The blocks of one sequence, in order: first shared ones, then its own.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    blocks: Vec<u32>,
    shared: Vec<NodeId>,
    generation: u64,
}

impl Lease {
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    #[cfg(test)]
    pub(crate) fn num_shared(&self) -> usize {
        self.shared.len()
    }
}

/// All blocks.
pub(crate) struct Blocks {
    block_tokens: usize,
    num_blocks: usize,
    free: Vec<u32>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: BTreeMap<Box<[u32]>, NodeId>,
    /// Unused leaves, the longest unused first.
    idle: BTreeSet<(u64, NodeId)>,
    /// Unused nodes, leaves or not: all of them can be evicted, leaf by leaf.
    num_unused: usize,
    clock: u64,
    generation: u64,
}

impl Blocks {
    pub(crate) fn new(num_blocks: usize, block_tokens: usize) -> Self {
        Self {
            block_tokens,
            num_blocks,
            free: (0..num_blocks as u32).rev().collect(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: BTreeMap::new(),
            idle: BTreeSet::new(),
            num_unused: 0,
            clock: 0,
            generation: 0,
        }
    }

    /// Blocks that could be had now.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.num_unused
    }

    /// Blocks that running sequences hold.
    pub(crate) fn in_use(&self) -> usize {
        self.num_blocks - self.available()
    }

    /// Blocks that hold nothing.
    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn blocks_for(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.block_tokens)
    }

    /// Leading full blocks of `tokens` that the tree has, at most `limit` tokens of them, and those of them that
    /// no sequence uses (they count as available until somebody takes them).
    pub(crate) fn known(&self, tokens: &[u32], limit: usize) -> (usize, usize) {
        let path = self.path(tokens, limit);
        (
            path.len(),
            path.iter().filter(|&&id| self.node(id).users == 0).count(),
        )
    }

    fn path(&self, tokens: &[u32], limit: usize) -> Vec<NodeId> {
        let mut children = &self.roots;
        let mut path = Vec::new();
        for key in tokens[..limit.min(tokens.len())].chunks_exact(self.block_tokens) {
            let Some(&id) = children.get(key) else { break };
            path.push(id);
            children = &self.node(id).children;
        }
        path
    }

    /// Take the known blocks of `tokens`.
    pub(crate) fn lease(&mut self, tokens: &[u32], limit: usize) -> Lease {
        let shared = self.path(tokens, limit);
        for &id in &shared {
            self.lock(id);
        }
        Lease {
            blocks: shared.iter().map(|&id| self.node(id).block).collect(),
            shared,
            generation: self.generation,
        }
    }

    /// Give the sequence room for `num_tokens`; evicts what nobody uses. `false` and nothing changed where there is no room.
    pub(crate) fn grow(&mut self, lease: &mut Lease, num_tokens: usize) -> bool {
        let missing = self
            .blocks_for(num_tokens)
            .saturating_sub(lease.blocks.len());
        if missing > self.available() {
            return false;
        }
        for _ in 0..missing {
            let block = self.take().expect("counted as available above");
            lease.blocks.push(block);
        }
        true
    }

    /// Put the sequence's full blocks into the tree; its first `num_tokens` of `tokens` have been computed.
    pub(crate) fn publish(&mut self, lease: &mut Lease, tokens: &[u32], num_tokens: usize) {
        if lease.generation != self.generation {
            return;
        }
        let full = num_tokens / self.block_tokens;
        while lease.shared.len() < full {
            let i = lease.shared.len();
            let key = &tokens[i * self.block_tokens..(i + 1) * self.block_tokens];
            let parent = lease.shared.last().copied();
            let children = parent.map_or(&self.roots, |p| &self.node(p).children);
            let id = match children.get(key) {
                // Somebody computed the same tokens meanwhile: the bits are equal, so keep one.
                Some(&id) => {
                    self.free.push(lease.blocks[i]);
                    lease.blocks[i] = self.node(id).block;
                    self.lock(id);
                    id
                }
                None => self.insert(key.into(), lease.blocks[i], parent),
            };
            lease.shared.push(id);
        }
    }

    /// The sequence needs its blocks no longer. What it published stays findable.
    pub(crate) fn release(&mut self, lease: Lease) {
        self.free
            .extend(lease.blocks[lease.shared.len()..].iter().rev());
        for &id in lease.shared.iter().rev() {
            self.unlock(id);
        }
    }

    /// Forget every prefix. Sequences keep the blocks they use; those are not shared again.
    pub(crate) fn flush(&mut self) {
        self.generation += 1;
        self.roots.clear();
        self.idle.clear();
        self.num_unused = 0;
        for id in 0..self.nodes.len() {
            let Some(node) = &mut self.nodes[id] else {
                continue;
            };
            node.children.clear();
            node.detached = true;
            if node.users == 0 {
                self.drop_node(id);
            }
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id]
            .as_ref()
            .expect("ids in leases, paths and children are live")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id]
            .as_mut()
            .expect("ids in leases, paths and children are live")
    }

    fn lock(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.users += 1;
        if node.users == 1 {
            let key = (node.last_used, id);
            self.num_unused -= 1;
            self.idle.remove(&key);
        }
    }

    fn unlock(&mut self, id: NodeId) {
        self.clock += 1;
        let clock = self.clock;
        let node = self.node_mut(id);
        node.users -= 1;
        node.last_used = clock;
        if node.users > 0 {
            return;
        }
        if node.detached {
            return self.drop_node(id);
        }
        let leaf = node.children.is_empty();
        self.num_unused += 1;
        if leaf {
            self.idle.insert((clock, id));
        }
    }

    /// A new node, used by its maker.
    fn insert(&mut self, key: Box<[u32]>, block: u32, parent: Option<NodeId>) -> NodeId {
        let node = Node {
            key: key.clone(),
            block,
            parent,
            children: BTreeMap::new(),
            users: 1,
            last_used: self.clock,
            detached: false,
        };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        let children = match parent {
            Some(p) => &mut self.node_mut(p).children,
            None => &mut self.roots,
        };
        children.insert(key, id);
        id
    }

    fn drop_node(&mut self, id: NodeId) {
        let node = self.nodes[id].take().expect("dropped once");
        self.vacant.push(id);
        self.free.push(node.block);
    }

    /// A free block; evicts the leaf that was unused for longest.
    fn take(&mut self) -> Option<u32> {
        if let Some(block) = self.free.pop() {
            return Some(block);
        }
        let (_, id) = self.idle.pop_first()?;
        self.num_unused -= 1;
        let node = self.node(id);
        let (key, parent) = (node.key.clone(), node.parent);
        match parent {
            None => {
                self.roots.remove(&key);
            }
            Some(p) => {
                let above = self.node_mut(p);
                above.children.remove(&key);
                if above.users == 0 && above.children.is_empty() {
                    let entry = (above.last_used, p);
                    self.idle.insert(entry);
                }
            }
        }
        self.drop_node(id);
        self.free.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sequence(blocks: &mut Blocks, tokens: &[u32]) -> Lease {
        let mut lease = blocks.lease(tokens, tokens.len());
        assert!(blocks.grow(&mut lease, tokens.len()));
        blocks.publish(&mut lease, tokens, tokens.len());
        lease
    }

    #[test]
    fn a_published_prefix_is_shared_and_the_partial_block_is_not() {
        let mut blocks = Blocks::new(8, 2);
        let first = sequence(&mut blocks, &[1, 2, 3, 4, 5]);
        assert_eq!(first.num_shared(), 2);
        assert_eq!(blocks.known(&[1, 2, 3, 4, 5], 5), (2, 0));
        let second = sequence(&mut blocks, &[1, 2, 3, 9, 9]);
        assert_eq!(second.blocks()[0], first.blocks()[0]);
        assert!(
            second.blocks()[1..]
                .iter()
                .all(|b| !first.blocks().contains(b))
        );
        assert_eq!(
            blocks.known(&[1, 2, 3, 4], 3).0,
            1,
            "the limit cuts to whole blocks"
        );
    }

    #[test]
    fn computing_the_same_block_twice_keeps_one() {
        let mut blocks = Blocks::new(4, 2);
        let (mut a, mut b) = (blocks.lease(&[], 0), blocks.lease(&[], 0));
        assert!(blocks.grow(&mut a, 2) && blocks.grow(&mut b, 2));
        assert_eq!(blocks.available(), 2);
        blocks.publish(&mut a, &[7, 8], 2);
        blocks.publish(&mut b, &[7, 8], 2);
        assert_eq!(a.blocks(), b.blocks());
        assert_eq!(blocks.available(), 3);
    }

    #[test]
    fn the_longest_unused_leaf_goes_first_and_parents_outlive_children() {
        let mut blocks = Blocks::new(3, 1);
        let a = sequence(&mut blocks, &[1, 2]);
        blocks.release(a);
        let b = sequence(&mut blocks, &[5]);
        blocks.release(b);
        let mut new = blocks.lease(&[9], 1);
        assert!(blocks.grow(&mut new, 1));
        assert_eq!(blocks.known(&[1, 2], 2).0, 1, "2 was the oldest leaf");
        assert_eq!(blocks.known(&[5], 1).0, 1);
    }

    #[test]
    fn a_flush_forgets_everything_and_spares_what_is_in_use() {
        let mut blocks = Blocks::new(6, 1);
        let running = sequence(&mut blocks, &[1, 2, 3]);
        let done = sequence(&mut blocks, &[1, 4]);
        blocks.release(done);
        blocks.flush();
        assert_eq!(blocks.known(&[1, 2, 3], 3).0, 0);
        assert_eq!(blocks.in_use(), 3);
        let held = running.blocks().to_vec();
        let mut other = blocks.lease(&[], 0);
        assert!(blocks.grow(&mut other, 3));
        assert!(
            other.blocks().iter().all(|b| !held.contains(b)),
            "blocks in use are not handed out"
        );
        let mut running = running;
        blocks.publish(&mut running, &[1, 2, 3], 3);
        assert_eq!(
            blocks.known(&[1], 1).0,
            0,
            "keys of the old weights never come back"
        );
        blocks.release(running);
        blocks.release(other);
        assert_eq!(blocks.available(), 6);
    }

    proptest! {
        /// Random sequences come and go; no block is ever owned twice, none is lost, and what the tree finds is
        /// what was published under those tokens.
        #[test]
        fn no_block_is_owned_twice_or_lost(steps in proptest::collection::vec((0u8..5, 0u32..3, 1usize..12), 1..200)) {
            let mut blocks = Blocks::new(16, 2);
            let mut live: Vec<(Lease, Vec<u32>)> = Vec::new();
            for (what, flavour, len) in steps {
                match what {
                    0 | 1 => {
                        let tokens: Vec<u32> = (0..len as u32).map(|i| if i < 4 { i } else { i * 10 + flavour }).collect();
                        let mut lease = blocks.lease(&tokens, len);
                        if blocks.grow(&mut lease, len) {
                            blocks.publish(&mut lease, &tokens, len);
                            live.push((lease, tokens));
                        } else {
                            blocks.release(lease);
                        }
                    }
                    2 | 3 if !live.is_empty() => {
                        let (lease, _) = live.swap_remove(len % live.len());
                        blocks.release(lease);
                    }
                    4 if flavour == 0 => blocks.flush(),
                    _ => {}
                }
                // A block that is in two leases is shared in both, at the same place, under the same tokens.
                let mut seen: BTreeMap<u32, (usize, Vec<u32>)> = BTreeMap::new();
                for (lease, tokens) in &live {
                    for (i, &b) in lease.blocks().iter().enumerate() {
                        let here = (i, tokens[..(2 * (i + 1)).min(tokens.len())].to_vec());
                        if let Some(there) = seen.insert(b, here.clone()) {
                            prop_assert!(i < lease.num_shared());
                            prop_assert_eq!(there, here);
                        }
                    }
                }
                prop_assert_eq!(blocks.in_use(), seen.len());
                prop_assert!(blocks.free.iter().all(|b| !seen.contains_key(b)));
            }
            for (lease, _) in live {
                blocks.release(lease);
            }
            prop_assert_eq!(blocks.available(), 16);
            let mut all = blocks.lease(&[], 0);
            prop_assert!(blocks.grow(&mut all, 32), "every block can be had again");
            let distinct: BTreeSet<u32> = all.blocks().iter().copied().collect();
            prop_assert_eq!(distinct.len(), 16);
        }
    }
}
