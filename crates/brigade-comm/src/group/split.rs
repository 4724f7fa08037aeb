//! Groups of some of a group's ranks.

use super::handle::Group;
use crate::Result;
use crate::algorithm::Algorithm;
use crate::op::call::OpType;
use crate::process_group::split::{chosen, group_number, row};
use crate::progress::context::{Context, GroupSpec};
use crate::sync::lock;

impl Group {
    /// Makes one new group of all members that give the same `color`, ordered by `key`, then by rank. Every member
    /// calls it, with the same `name` where the color is the same.
    ///
    /// # Errors
    /// If members disagree on the name, or a rank failed.
    pub fn split(&self, name: &str, color: u32, key: u32) -> Result<Group> {
        self.split_with(name, color, key, self.0.progress.context.algorithm)
    }

    /// Makes a group of the same ranks whose collectives use this algorithm. Every member calls it, with the same one.
    ///
    /// # Errors
    /// If members give different algorithms, or a rank failed.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Group> {
        self.split_with(&format!("{}, {algorithm}", self.name()), 0, 0, algorithm)
    }

    fn split_with(&self, name: &str, color: u32, key: u32, algorithm: Algorithm) -> Result<Group> {
        let mut splits = lock(&self.0.splits);
        let GroupSpec { group, rank, members, .. } = self.spec();
        let mut rows = vec![[0; 3]; self.size()];
        rows[*rank] = row(name, color, key);
        self.all_gather_in_place(rows.as_flattened_mut())?;
        let chosen = chosen(&rows, *rank, members, name);
        let chosen = chosen.map_err(|reason| self.refuse(OpType::AllGather, reason))?;
        let number = group_number(*group, *splits, color);
        *splits += 1;
        let spec = GroupSpec {
            group: number,
            name: name.into(),
            rank: chosen.iter().take_while(|member| *member != rank).count(),
            members: chosen.iter().map(|member| members[*member]).collect(),
        };
        let context = &self.0.progress.context;
        Self::connect(Context { algorithm, ..context.clone() }, spec)
            .inspect_err(|error| context.fault.raise(members[*rank], error.clone()))
    }
}
