//! Formulas of ZeRO's memory as others published them, each in its own accounting.

/// Bytes a device that ZeRO holds of `parameters` over `ranks` with mixed-precision Adam: `16 Ψ`, `4 Ψ + 12 Ψ/N`, `2 Ψ + 14 Ψ/N`, `16 Ψ/N` for stages 0 to 3
/// (Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", table 1).
pub fn zero(parameters: f64, ranks: usize, stage: u8) -> f64 {
    let shard = parameters / ranks as f64;
    match stage {
        0 => 16.0 * parameters,
        1 => 4.0 * parameters + 12.0 * shard,
        2 => 2.0 * parameters + 14.0 * shard,
        _ => 16.0 * shard,
    }
}

/// Numbers that each rank sends in a step of this many parameters under ZeRO, as multiples of the parameters (section 7 there).
pub fn zero_volume(stage: u8) -> f64 {
    if stage == 3 { 3.0 } else { 2.0 }
}

/// What DeepSpeed keeps in the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeepSpeedOffload {
    /// Nothing.
    None,
    /// The optimizer's state.
    Optimizer,
    /// The optimizer's state and, under stage 3, the parameters.
    All,
}

/// Bytes on each GPU by DeepSpeed's estimators of stages 2 and 3 (its documentation, "Memory requirements"), which have none for others. `largest_layer`: the parameters of the
/// layer that has the most, which stage 3 gathers.
pub fn deepspeed(
    parameters: f64,
    largest_layer: f64,
    ranks: usize,
    stage: u8,
    offload: DeepSpeedOffload,
) -> Option<f64> {
    let shard = parameters / ranks as f64;
    match (stage, offload) {
        (2, DeepSpeedOffload::None) => Some(4.0 * parameters + 16.0 * shard),
        (2, _) => Some(2.0 * parameters),
        (3, DeepSpeedOffload::None) => Some(4.0 * largest_layer + 18.0 * shard),
        (3, DeepSpeedOffload::Optimizer) => Some(4.0 * largest_layer + 2.0 * shard),
        (3, DeepSpeedOffload::All) => Some(4.0 * largest_layer),
        _ => None,
    }
}
