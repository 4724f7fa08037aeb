//! Mixtures of experts.

use super::ModelShape;

/// The experts of a layer: MLPs of which a token passes those that a router chooses for it. Every rank has all experts of its layers.
pub struct Experts {
    pub count: usize,
    pub per_token: usize,
}

impl Experts {
    /// Puts these experts in the place of an MLP with this many parameters.
    ///
    /// # Errors
    /// If a token cannot pass this many; what is allowed.
    pub fn widen(&self, shape: &mut ModelShape, mlp: u64) -> Result<(), String> {
        let Self { count, per_token } = *self;
        if !(1..=count).contains(&per_token) {
            return Err(format!("from 1 to the {count} experts"));
        }
        let router = if count == 1 { 0 } else { (shape.hidden as u64).saturating_mul(count as u64) };
        let others = mlp.saturating_mul(count as u64 - 1).saturating_add(router);
        shape.layer_parameters = shape.layer_parameters.saturating_add(others);
        shape.idle_parameters = mlp.saturating_mul((count - per_token) as u64);
        shape.intermediate = shape.intermediate.saturating_mul(per_token);
        Ok(())
    }
}
