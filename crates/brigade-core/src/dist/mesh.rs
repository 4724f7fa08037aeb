//! The ranks as a grid with named axes.

use crate::error::{Error, Result};

/// The axis of the pipeline's stages.
pub const PP: &str = "pp";
/// The axis along which ZeRO shards: ranks that hold the same blocks and run other micro-batches.
pub const DP: &str = "dp";
/// The axis of replicas: ranks that hold the same shards and run other micro-batches (hybrid sharding, PyTorch's HSDP).
pub const REPLICATE: &str = "replicate";

/// The axis of workers, which comes before all others: each is a mesh of the other axes that makes its own updates, and from time to
/// time they synchronise ([`LocalUpdates`](crate::LocalUpdates)).
pub const WORKERS: &str = "workers";

/// The axes whose ranks run different micro-batches.
pub const DATA: [&str; 3] = [WORKERS, REPLICATE, DP];

/// One axis of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Its name, such as [`DP`].
    pub name: &'static str,
    /// Number of ranks along it.
    pub size: usize,
}

/// The grid that the ranks make: named axes, the outermost first, whose sizes multiply to the number of ranks.
///
/// Ranks are numbered in row-major order, as in PyTorch's `DeviceMesh`: neighbours in rank are neighbours along the last axis,
/// so its collectives should move the most bytes. A missing axis has size 1, and every rank has coordinate 0 along it; so any
/// axis may be queried.
///
/// ```
/// use brigade_core::{DP, Mesh, PP};
/// let mesh = Mesh::new(8, [(PP, 2), ("replicate", 2), (DP, 2)]).unwrap();
/// assert_eq!((mesh.coordinate(6, PP), mesh.coordinate(6, DP)), (1, 0));
/// assert_eq!(mesh.members(6, &["replicate", DP]), [4, 5, 6, 7]);
/// assert_eq!(mesh.members(6, &[PP, DP]), [2, 3, 6, 7]);
/// assert_eq!(mesh.size("tp"), 1);
/// assert!(Mesh::new(4, [(PP, 1), (DP, 2)]).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    axes: Vec<Axis>,
}

impl Mesh {
    /// The mesh of `world` ranks, from its axes' names and sizes.
    ///
    /// # Errors
    /// If the product of the sizes is not the number of ranks, or two axes have one name.
    pub fn new(world: usize, axes: impl IntoIterator<Item = (&'static str, usize)>) -> Result<Self> {
        let axes: Vec<Axis> = axes.into_iter().map(|(name, size)| Axis { name, size }).collect();
        let twice = (1..axes.len()).find(|index| axes[..*index].iter().any(|a| a.name == axes[*index].name));
        if let Some(index) = twice {
            return Err(Error::Model(format!("two axes of the mesh are named `{}`", axes[index].name)));
        }
        let ranks = axes.iter().try_fold(1usize, |all, axis| all.checked_mul(axis.size));
        if ranks != Some(world) || world == 0 {
            return Err(wrong_size(world, &axes));
        }
        Ok(Self { axes })
    }

    /// The mesh of ranks that all hold the same blocks.
    pub fn data_parallel(ranks: usize) -> Self {
        Self { axes: vec![Axis { name: DP, size: ranks.max(1) }] }
    }

    /// The mesh of the other axes.
    pub fn without(&self, axis: &str) -> Self {
        Self { axes: self.axes.iter().filter(|other| other.name != axis).copied().collect() }
    }

    /// The axes, the outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Number of ranks along an axis.
    pub fn size(&self, axis: &str) -> usize {
        self.size_over(&[axis])
    }

    /// Number of ranks along several axes together.
    pub fn size_over(&self, axes: &[&str]) -> usize {
        self.axes.iter().filter(|axis| axes.contains(&axis.name)).map(|axis| axis.size).product()
    }

    /// Position of a rank along an axis.
    pub fn coordinate(&self, rank: usize, axis: &str) -> usize {
        self.position(rank, &[axis])
    }

    /// Number of a rank in its group along several axes: its position in [`members`](Self::members).
    pub fn position(&self, rank: usize, axes: &[&str]) -> usize {
        let along = self.axes.iter().zip(self.coordinates(rank));
        along
            .filter(|(axis, _)| axes.contains(&axis.name))
            .fold(0, |before, (axis, at)| before * axis.size + at)
    }

    /// The ranks of a rank's group along several axes, in order: those with its coordinates along all others.
    pub fn members(&self, rank: usize, axes: &[&str]) -> Vec<usize> {
        let others = self.complement(axes);
        let own = self.position(rank, &others);
        (0..self.world()).filter(|peer| self.position(*peer, &others) == own).collect()
    }

    /// Every set of axes whose groups are neither single ranks nor the world, in an order that all ranks share; axes of size 1
    /// are left out, as they change no group.
    pub fn subsets(&self) -> Vec<Vec<&'static str>> {
        let long: Vec<&'static str> = self.axes.iter().filter(|a| a.size > 1).map(|a| a.name).collect();
        let chosen = |bits: usize| (0..long.len()).filter(move |index| bits >> index & 1 == 1);
        (1..(1usize << long.len()).saturating_sub(1))
            .map(|bits| chosen(bits).map(|i| long[i]).collect())
            .collect()
    }

    /// The mesh's other axes.
    pub fn complement(&self, axes: &[&str]) -> Vec<&'static str> {
        self.axes.iter().map(|axis| axis.name).filter(|name| !axes.contains(name)).collect()
    }

    fn coordinates(&self, rank: usize) -> impl Iterator<Item = usize> {
        let mut below = self.world();
        self.axes.iter().map(move |axis| {
            below /= axis.size;
            rank / below % axis.size
        })
    }
}

/// The error of sizes that do not multiply to the number of ranks, with the nearest that do.
fn wrong_size(world: usize, axes: &[Axis]) -> Error {
    let product = |axes: &[Axis]| axes.iter().fold(1usize, |all, axis| all.saturating_mul(axis.size.max(1)));
    let text = |axes: &[Axis]| {
        let axes: Vec<String> = axes.iter().map(|axis| format!("{} {}", axis.name, axis.size)).collect();
        axes.join(" x ")
    };
    let names: Vec<&str> = axes.iter().map(|axis| axis.name).collect();
    // Axes whose flag sets their size. `--replicate` is a flag too, but it divides the ranks of `--dp`: a wrong size along that axis is that of a
    // program's own mesh.
    let option = |axis: &Axis| match [PP, DP, WORKERS].contains(&axis.name) {
        true => format!("--{}", axis.name),
        false => axis.name.to_owned(),
    };
    let nearest = match axes.split_last() {
        Some((last, outer)) if !outer.is_empty() && world.is_multiple_of(product(outer)) => {
            let outer: Vec<_> = outer.iter().map(|axis| Axis { size: axis.size.max(1), ..*axis }).collect();
            format!("with {} set {} {}", text(&outer), option(last), world / product(&outer))
        }
        Some((last, outer)) => {
            let mut left = world;
            let settings = outer.iter().map(|axis| {
                let divisor =
                    (1..=axis.size.max(1)).rev().find(|size| left.is_multiple_of(*size)).unwrap_or(1);
                left /= divisor;
                format!("{} {divisor} ", option(axis))
            });
            let settings: String = settings.collect();
            format!("set {settings}{} {left}", option(last))
        }
        None => "give at least one axis".into(),
    };
    Error::Setting {
        option: "mesh (--pp, --dp)",
        given: text(axes),
        allowed: format!(
            "{} must be the world size, {world}; {nearest}, or start {} rank{} (--nproc-per-node)",
            names.join(" x "),
            product(axes),
            if product(axes) == 1 { "" } else { "s" }
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 4] = [PP, "replicate", DP, "tp"];

    proptest! {
        #[test]
        fn groups_of_every_subset_part_the_ranks(sizes in prop::collection::vec(1usize..4, 1..5)) {
            let world: usize = sizes.iter().product();
            let mesh = Mesh::new(world, NAMES.into_iter().zip(sizes.iter().copied())).unwrap();
            prop_assert_eq!(mesh.axes().len(), sizes.len());
            for axes in mesh.subsets() {
                let mut seen = vec![0; world];
                for rank in 0..world {
                    let members = mesh.members(rank, &axes);
                    prop_assert_eq!(members.len(), mesh.size_over(&axes));
                    prop_assert!(members.len() > 1 && members.len() < world);
                    prop_assert_eq!(members[mesh.position(rank, &axes)], rank);
                    members.iter().for_each(|member| seen[*member] += 1);
                }
                prop_assert!(seen.iter().all(|times| *times == mesh.size_over(&axes)));
            }
        }
    }

    #[test]
    fn an_axis_of_one_rank_changes_nothing() {
        let [without, with] = [vec![(PP, 2), (DP, 3)], vec![(PP, 2), (REPLICATE, 1), (DP, 3)]]
            .map(|axes| Mesh::new(6, axes).unwrap());
        assert_eq!(without.subsets(), with.subsets());
        for rank in 0..6 {
            assert_eq!(without.members(rank, &[DP]), with.members(rank, &DATA));
            assert_eq!(with.coordinate(rank, REPLICATE), 0);
        }
    }

    #[test]
    fn wrong_sizes_name_the_nearest_right_ones() {
        let error = |world, axes: &[(&'static str, usize)]| {
            Mesh::new(world, axes.iter().copied()).unwrap_err().to_string()
        };
        assert!(
            error(4, &[(PP, 2), (DP, 3)]).contains("with pp 2 set --dp 2"),
            "{}",
            error(4, &[(PP, 2), (DP, 3)])
        );
        assert!(error(4, &[(PP, 3), (DP, 1)]).contains("set --pp 2 --dp 2"));
        assert!(error(0, &[(DP, 0)]).contains("world size, 0"));
        assert!(error(4, &[(DP, 2), (DP, 2)]).contains("two axes"));
    }
}
