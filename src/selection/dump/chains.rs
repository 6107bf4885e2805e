//! Whole prompts out of an index, for one of own decisions.

use hashbrown::HashMap;

use crate::selection::{
    hash,
    identity::{Tier, WorkerWithDpRank},
    index::PrefixIndex,
};

/// A block and the one before it.
struct Node {
    local: u64,
    parent: Option<usize>,
}

/// Visits, for every device run of `index`, the chain from the root to the run's end: content hashes and chained
/// hashes. Runs whose parent is not held are left out.
pub(in crate::selection) fn for_each_chain(
    index: &PrefixIndex,
    mut visit: impl FnMut(WorkerWithDpRank, &[u64], &[u64]),
) {
    let mut nodes: Vec<Node> = Vec::new();
    let mut known: HashMap<(WorkerWithDpRank, u64), usize> = HashMap::new();
    let mut ends = Vec::new();
    index.export(&mut |run| {
        let mut parent = match run.parent {
            Some(name) => match known.get(&(run.rank, name)) {
                Some(&at) => Some(at),
                None => return,
            },
            None => None,
        };
        if run.tier != Tier::Device || run.blocks.is_empty() {
            return;
        }
        for block in &run.blocks {
            known.insert((run.rank, block.name), nodes.len());
            nodes.push(Node { local: block.local, parent });
            parent = Some(nodes.len() - 1);
        }
        ends.push((run.rank, nodes.len() - 1));
    });
    let (mut locals, mut seqs) = (Vec::new(), Vec::new());
    for (rank, end) in ends {
        locals.clear();
        let mut next = Some(end);
        while let Some(node) = next.map(|at| &nodes[at]) {
            locals.push(node.local);
            next = node.parent;
        }
        locals.reverse();
        // Not the names: those are whatever the dump says.
        hash::sequence_hashes(&locals, &mut seqs);
        visit(rank, &locals, &seqs);
    }
}
