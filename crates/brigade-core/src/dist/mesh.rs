//! The ranks as a grid with named axes.

use crate::error::{Error, Result};

/// Sizes of the mesh's axes: `pp` pipeline stages, each of `dp` data-parallel ranks.
///
/// Rank `r` has the coordinates `(pp, dp) = (r / dp_size, r % dp_size)`: neighbours in rank are
/// neighbours along `dp`, whose collectives move the most bytes.
///
/// ```
/// use brigade_core::Mesh;
/// let mesh = Mesh::new(4, 1, 4).unwrap();
/// assert_eq!((mesh.dp_rank(3), mesh.pp_rank(3)), (3, 0));
/// assert!(Mesh::new(4, 1, 2).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// Pipeline stages.
    pub pp: usize,
    /// Data-parallel ranks per stage.
    pub dp: usize,
}

impl Mesh {
    /// The mesh of `world` ranks.
    ///
    /// # Errors
    /// If `pp · dp` is not the number of ranks.
    pub fn new(world: usize, pp: usize, dp: usize) -> Result<Self> {
        if pp == 0 || dp == 0 || pp.checked_mul(dp) != Some(world) {
            let (pp, dp) = (pp.max(1), dp.max(1));
            let nearest = match world.is_multiple_of(pp) {
                true => format!("with pp {pp} set --dp {}", world / pp),
                false => {
                    let divisor = (1..=pp).rev().find(|stages| world.is_multiple_of(*stages)).unwrap_or(1);
                    format!("set --pp {divisor} --dp {}", world / divisor)
                }
            };
            return Err(Error::Setting {
                option: "mesh (--pp, --dp)",
                given: format!("pp {pp} x dp {dp}"),
                allowed: format!(
                    "pp x dp must be the world size, {world}; {nearest}, or start {} ranks (--nproc-per-node)",
                    pp.saturating_mul(dp)
                ),
            });
        }
        Ok(Self { pp, dp })
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.pp * self.dp
    }

    /// Position of a rank along `dp`.
    pub fn dp_rank(&self, rank: usize) -> usize {
        rank % self.dp
    }

    /// Position of a rank along `pp`: its stage.
    pub fn pp_rank(&self, rank: usize) -> usize {
        rank / self.dp
    }
}
