//! Groups of some of a group's ranks.

use brigade_random::keyed_bytes;

use super::handle::Group;
use crate::Result;
use crate::op::call::OpType;
use crate::progress::context::GroupSpec;
use crate::sync::lock;

impl Group {
    /// Makes one new group of all members that give the same `color`, ordered by `key`, then by rank. Every member
    /// calls it, with the same `name` where the color is the same.
    pub fn split(&self, name: &str, color: u32, key: u32) -> Result<Group> {
        let mut splits = lock(&self.0.splits);
        let GroupSpec { group, rank, members, .. } = self.spec();
        let mut rows = vec![[0i64; 3]; self.size()];
        rows[*rank] = [color.into(), key.into(), keyed_bytes(0, name.as_bytes()) as i64];
        self.all_gather_in_place(rows.as_flattened_mut())?;
        let mut chosen: Vec<usize> =
            (0..rows.len()).filter(|member| rows[*member][0] == i64::from(color)).collect();
        chosen.sort_by_key(|member| (rows[*member][1], *member));
        if let Some(other) = chosen.iter().find(|member| rows[**member][2] != rows[*rank][2]) {
            let other = members[*other];
            let reason =
                format!("split by color {color}: this rank names the group \"{name}\", rank {other} another");
            return Err(self.refuse(OpType::AllGather, reason));
        }
        let number = keyed_bytes(keyed_bytes(*group, &splits.to_le_bytes()), &color.to_le_bytes());
        *splits += 1;
        let spec = GroupSpec {
            group: number,
            name: name.into(),
            rank: chosen.iter().take_while(|member| *member != rank).count(),
            members: chosen.iter().map(|member| members[*member]).collect(),
        };
        let context = &self.0.progress.context;
        Self::connect(context.clone(), spec)
            .inspect_err(|error| context.fault.raise(members[*rank], error.clone()))
    }
}
