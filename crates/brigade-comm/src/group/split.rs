//! Groups of some of a group's ranks.

use brigade_random::keyed_bytes;

use super::handle::Group;
use crate::Result;
use crate::op::algorithm::{Algorithm, AlgorithmRow};
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
        self.split_with(name, color, key, self.0.progress.context.clone())
    }

    /// Makes a group of the same ranks whose collectives use this algorithm. Every member calls it, with the same one.
    ///
    /// # Errors
    /// If members give different algorithms, or a rank failed.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Group> {
        let context = Context { algorithm, ..self.0.progress.context.clone() };
        self.split_with(&format!("{}, {algorithm}", self.name()), 0, 0, context)
    }

    /// Makes a group of the same ranks in which, and in the groups it is split into, [`Algorithm::Auto`] uses a table's algorithms. Every
    /// member calls it, with the same table.
    ///
    /// # Errors
    /// If members give different tables, or a rank failed.
    pub fn with_table(&self, table: &[AlgorithmRow]) -> Result<Group> {
        let context = Context { table: table.into(), ..self.0.progress.context.clone() };
        let number = keyed_bytes(0, format!("{table:?}").as_bytes()) as u32;
        self.split_with(&format!("{}, table {number:08x}", self.name()), 0, 0, context)
    }

    fn split_with(&self, name: &str, color: u32, key: u32, context: Context) -> Result<Group> {
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
        let fault = context.fault.clone();
        Self::connect(context, spec).inspect_err(|error| fault.raise(members[*rank], error.clone()))
    }
}
