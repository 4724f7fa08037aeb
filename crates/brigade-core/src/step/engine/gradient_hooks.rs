//! Functions of a program between the reduction of gradients and the update.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::step::engine::UntypedEngine;
use crate::step::gradients::hook::UnitGradient;

impl UntypedEngine {
    /// Calls `hook` once for each unit in each step that makes an update, after the gradients are summed over all ranks and divided by
    /// the weight of the targets, and before their norm is taken, so that clipping, the norm in reports and the optimizer see what
    /// it returns: a tensor of as many elements, in fp32. Several hooks run in the order in which they were given.
    ///
    /// A rank calls it for the elements that it owns: those of its pipeline stage, and of them with ZeRO a shard. Ranks that have the same
    /// elements all call it. So for the same bits on every mesh and on all ranks, an element's new value must follow from its old
    /// value, its name and number ([`UnitGradient::parameters`]) and the step alone: masks, scaling, clamping, or noise drawn from a seed made of
    /// these. Burn's generator is seeded for each call, so noise drawn from it is the same on all ranks that have the same elements, and in each
    /// run of one mesh; with ZeRO, other shards draw other noise, and so do other workers. A hook must not wait for other ranks. What needs a whole parameter, such as its norm, is not possible here. It is also called in a step that is
    /// then skipped because its loss or norm is not finite, and by [`gradients`](crate::Engine::gradients).
    ///
    /// ```
    /// # use brigade_core::{Engine, ParameterPart, UnitGradient};
    /// # use burn::tensor::Tensor;
    /// # fn add(engine: &mut Engine<Tensor<2>, Tensor<2>, Tensor<2>>) {
    /// // The first 64 rows of a table of width 16 keep their values.
    /// engine.on_gradient(|unit: &UnitGradient<'_>, mut gradient| {
    ///     let is_kept = |part: &ParameterPart| part.name == "embedding.table" && part.elements.start < 64 * 16;
    ///     for part in unit.parameters().filter(is_kept) {
    ///         let kept = part.elements.end.min(64 * 16) - part.elements.start;
    ///         let zeros = Tensor::zeros([kept], &gradient.device());
    ///         gradient = gradient.slice_assign(part.place.start..part.place.start + kept, zeros);
    ///     }
    ///     gradient
    /// });
    /// # }
    /// ```
    pub fn on_gradient(
        &mut self,
        hook: impl Fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
    ) {
        self.gradient_hooks.push(Arc::new(hook));
    }
}
