//! What each number of nodes needs.

use std::cell::RefCell;

use brigade_sorted::SortedMap;

use crate::launcher::config::Elastic;

/// What numbers of nodes need, each asked for once.
pub struct NodeCountArgs<'a> {
    pub elastic: &'a Elastic,
    known: RefCell<SortedMap<usize, Result<Vec<String>, String>>>,
}

impl<'a> NodeCountArgs<'a> {
    pub fn new(elastic: &'a Elastic) -> Self {
        Self { elastic, known: RefCell::default() }
    }

    fn of(&self, nodes: usize) -> Result<Vec<String>, String> {
        let mut known = self.known.borrow_mut();
        known.entry(nodes).or_insert_with(|| (self.elastic.node_count_args)(nodes)).clone()
    }

    /// The most nodes, of those that there are, on which ranks can run, with their arguments.
    ///
    /// # Errors
    /// Why they cannot run on all of them, where they can run on no other allowed number either.
    pub fn most(&self, nodes: usize) -> Result<(usize, Vec<String>), String> {
        let found = (self.elastic.min_nodes..=nodes).rev().find_map(|n| Some((n, self.of(n).ok()?)));
        found.ok_or_else(|| self.of(nodes).err().unwrap_or_default())
    }

    /// Why ranks cannot run on this many nodes.
    pub fn refusal(&self, nodes: usize) -> Option<String> {
        self.of(nodes).err()
    }
}
