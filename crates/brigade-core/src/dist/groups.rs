//! The groups of ranks along the mesh's axes.

use std::sync::Arc;

use crate::dist::collectives::{Collectives, Traffic, add_traffic};
use crate::dist::mesh::Mesh;
use crate::dist::single_rank::SingleRankGroup;

/// A set of a mesh's axes, in the mesh's order.
type Axes = Vec<&'static str>;

/// This rank's groups: all ranks, and those along every set of the mesh's axes.
///
/// A rank's number in a group is its [position](Mesh::position) along the group's axes. A group of one rank is
/// [`SingleRankGroup`], and axes that hold all ranks have the world's group itself.
#[derive(Clone)]
pub struct Groups {
    mesh: Mesh,
    world: Arc<dyn Collectives>,
    /// Along axes of one rank.
    single: Arc<dyn Collectives>,
    /// Those of [`Mesh::subsets`].
    subgroups: Vec<(Axes, Arc<dyn Collectives>)>,
}

impl Groups {
    /// The groups of a mesh, of which `subgroup` makes those of each of its [subsets](Mesh::subsets).
    ///
    /// # Errors
    /// Those of `subgroup`.
    pub fn new<E>(
        mesh: Mesh,
        world: Arc<dyn Collectives>,
        mut subgroup: impl FnMut(&[&'static str]) -> Result<Arc<dyn Collectives>, E>,
    ) -> Result<Self, E> {
        let made = mesh.subsets().into_iter().map(|axes| subgroup(&axes).map(|group| (axes, group)));
        let subgroups = made.collect::<Result<_, E>>()?;
        Ok(Self { mesh, world, single: Arc::new(SingleRankGroup), subgroups })
    }

    /// The groups of a mesh of the one axis [`DP`](crate::DP).
    pub fn data_parallel(world: Arc<dyn Collectives>) -> Self {
        let single = Arc::new(SingleRankGroup);
        Self { mesh: Mesh::data_parallel(world.size()), world, single, subgroups: Vec::new() }
    }

    /// The groups of a process that is alone, all of which are `world`: to measure what its collectives cost by themselves.
    pub fn single_rank_through(world: Arc<dyn Collectives>) -> Self {
        Self { single: world.clone(), ..Self::data_parallel(world) }
    }

    /// The groups of a process that is alone.
    pub fn single_rank() -> Self {
        Self::data_parallel(Arc::new(SingleRankGroup))
    }

    /// The mesh that the ranks make.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The groups of the ranks that differ from this one along the mesh's other axes alone, as if they were all there are.
    pub fn without(&self, axis: &str) -> Self {
        let mesh = self.mesh.without(axis);
        let others: Axes = mesh.axes().iter().map(|axis| axis.name).collect();
        let is_inside = |axes: &Axes| axes.iter().all(|name| others.contains(name));
        Self {
            world: self.over(&others),
            single: self.single.clone(),
            subgroups: self.subgroups.iter().filter(|(axes, _)| is_inside(axes)).cloned().collect(),
            mesh,
        }
    }

    /// All ranks.
    pub fn world(&self) -> &Arc<dyn Collectives> {
        &self.world
    }

    /// This rank's group along any axes: the ranks that differ from it along these alone.
    pub fn over(&self, axes: &[&str]) -> Arc<dyn Collectives> {
        let long = |name: &str| axes.contains(&name) && self.mesh.size(name) > 1;
        let wanted: Axes = self.mesh.axes().iter().map(|axis| axis.name).filter(|name| long(name)).collect();
        if wanted.is_empty() {
            return self.single.clone();
        }
        let found = self.subgroups.iter().find(|(axes, _)| *axes == wanted);
        found.map_or_else(|| self.world.clone(), |(_, group)| group.clone())
    }

    /// The same groups, each as `wrap` gives it back, which is also told the group's axes: all of them for the world.
    pub fn map(
        self,
        mut wrap: impl FnMut(&[&'static str], Arc<dyn Collectives>) -> Arc<dyn Collectives>,
    ) -> Self {
        let all: Axes = self.mesh.axes().iter().map(|axis| axis.name).collect();
        let world = wrap(&all, self.world);
        let wrapped = self.subgroups.into_iter().map(|(axes, group)| {
            let group = wrap(&axes, group);
            (axes, group)
        });
        Self { mesh: self.mesh, single: self.single, world, subgroups: wrapped.collect() }
    }

    /// Calls and bytes of all groups since they began.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = self.world.traffic();
        self.subgroups.iter().for_each(|(_, group)| add_traffic(&mut traffic, group.traffic()));
        traffic
    }
}
