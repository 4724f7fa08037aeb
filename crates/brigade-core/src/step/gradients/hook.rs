//! Functions of a program that change or look at gradients before an update.

use std::ops::Range;
use std::sync::Arc;

use brigade_random::keyed_seed;
use burn::tensor::{DType, Tensor};

use crate::error::{Error, Result};
use crate::model::activation::Activation;
use crate::model::random_state::with_seed;
use crate::sharding::layout::FlatLayout;
use crate::sharding::store::StoredUnit;
use crate::step::engine::Engine;

/// The part of a unit's gradient that a rank owns.
///
/// A unit is a flat buffer of parameters: those of a block that are of the same kind, in the order of their paths, or one that blocks
/// share. Without ZeRO, a rank has all elements of the units of its pipeline stage; with ZeRO, a range of each.
#[derive(Debug, Clone)]
pub struct UnitGradient<'a> {
    /// The step that makes the update, counted from 1.
    pub step: u64,
    /// The unit's name: the block's, with what is particular to the unit behind it.
    pub unit: &'a str,
    /// The name of the block that the parameters are of.
    pub block: &'a str,
    /// Which parameters the unit has, and where.
    pub layout: &'a FlatLayout,
    /// The elements of the unit that the gradient has, without padding.
    pub range: Range<usize>,
}

/// The part of a parameter that is in a [`UnitGradient`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterPart {
    /// `block.path`.
    pub name: String,
    /// Which of the parameter's elements, flattened in row-major order.
    pub elements: Range<usize>,
    /// Where they are in the gradient.
    pub place: Range<usize>,
}

impl UnitGradient<'_> {
    /// The parameters of which the gradient has elements, in order.
    pub fn parameters(&self) -> impl Iterator<Item = ParameterPart> {
        self.layout.params().iter().filter_map(|param| {
            let part = param.range.start.max(self.range.start)..param.range.end.min(self.range.end);
            (!part.is_empty()).then(|| ParameterPart {
                name: format!("{}.{}", self.block, param.path),
                elements: part.start - param.range.start..part.end - param.range.start,
                place: part.start - self.range.start..part.end - self.range.start,
            })
        })
    }
}

/// See [`Engine::on_gradient`].
pub(crate) type GradientHook = Arc<dyn Fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1> + Send + Sync>;

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Calls `hook` once for each unit in each step that makes an update, after the gradients are summed over all ranks and divided by
    /// the weight of the targets, and before their norm is taken, so that clipping, the norm in reports and the optimizer see what
    /// it returns: a tensor of as many elements, in fp32. Several hooks run in the order in which they were given.
    ///
    /// A rank calls it for the elements that it owns: those of its pipeline stage, and of them with ZeRO a shard. Ranks that have the same
    /// elements all call it. So for the same bits on every mesh and on all ranks, an element's new value must follow from its old
    /// value, its name and number ([`UnitGradient::parameters`]) and the step alone: masks, scaling, clamping, or noise drawn from a seed made of
    /// these. Burn's generator is seeded for each call, so noise drawn from it is the same on all ranks that have the same elements, and in each
    /// run of one mesh; with ZeRO, other shards draw other noise. What needs a whole parameter, such as its norm, is not possible here. It is also called in a step that is
    /// then skipped because its loss or norm is not finite, and by [`gradients`](Self::gradients).
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

/// The rank's own elements of a unit's gradient after the hooks. Padding is unchanged.
pub(crate) fn run(
    hooks: &[GradientHook],
    (seed, step): (u64, u64),
    (stored, block): (&StoredUnit, &str),
    gradient: Tensor<1>,
) -> Result<Tensor<1>> {
    let (unit, own) = (&stored.unit, &stored.own);
    let range = own.start..own.end.min(unit.layout.len());
    if range.is_empty() {
        return Ok(gradient);
    }
    let mut changed = gradient.clone().slice(0..range.len());
    let about = UnitGradient { step, unit: &unit.name, block, layout: &unit.layout, range: range.clone() };
    let seed = keyed_seed(seed, &format!("gradient/{}/{step}/{}", unit.name, range.start));
    for (number, hook) in hooks.iter().enumerate() {
        let seed = keyed_seed(seed, &number.to_string());
        changed = with_seed(&gradient.device(), seed, || hook(&about, changed));
        if changed.dims() != [range.len()] || changed.dtype() != DType::F32 {
            return Err(Error::Model(format!(
                "a gradient hook must return {} values of fp32 for the unit `{}`, as many as it was given, but returned {:?} \
                of {:?}",
                range.len(),
                unit.name,
                changed.dims(),
                changed.dtype()
            )));
        }
    }
    Ok(match own.len() - range.len() {
        0 => changed,
        padding => Tensor::cat(vec![changed, gradient.slice(range.len()..range.len() + padding)], 0),
    })
}
