//! The meshes that runs are started on.

/// A mesh, by the flags that make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Number of ranks.
    pub ranks: u32,
    /// All flags that say how ranks share the work.
    pub flags: &'static str,
}

const ALL: [Mesh; 5] = [
    Mesh { ranks: 1, flags: "--nproc-per-node 1 --pp 1 --dp 1 --zero 0" },
    Mesh { ranks: 2, flags: "--nproc-per-node 2 --pp 1 --dp 2 --zero 0" },
    Mesh { ranks: 2, flags: "--nproc-per-node 2 --pp 1 --dp 2 --zero 3" },
    Mesh { ranks: 2, flags: "--nproc-per-node 2 --pp 2 --dp 1 --zero 0" },
    Mesh { ranks: 4, flags: "--nproc-per-node 4 --pp 2 --dp 2 --zero 1" },
];

/// One process, which every mesh must equal.
pub const SINGLE: Mesh = ALL[0];

/// The meshes of at most this many ranks.
pub fn up_to(ranks: u32) -> Vec<Mesh> {
    ALL.into_iter().filter(|mesh| mesh.ranks <= ranks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_has_fewer_meshes() {
        assert_eq!([1, 2, 3, 4].map(|ranks| up_to(ranks).len()), [1, 4, 4, 5]);
        assert!(ALL.iter().all(|mesh| mesh.flags.contains(&format!("--nproc-per-node {} ", mesh.ranks))));
    }
}
